"""The checker's record of what is physical: learners, their processes, and the fences of the cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Key = tuple[str, int, str]


@dataclass
class Body:
    """One learner of one attempt."""

    node: str
    cpus: float
    gpus: float
    present: bool = True
    active: bool = False
    prepared: bool = False
    """Its helper has fetched all it needs."""
    started: bool = False
    alive: bool = False
    over: bool = False
    natural: bool = False
    """It ended by itself: nobody had told it to stop."""
    itself: bool = False
    code: int | None = None
    lost: bool = False
    vanished: bool = False
    """It went without a trace, with its machine."""
    gave_up: bool = False
    stored: bool = False
    at: float = 0.0
    """When it ended."""

    @property
    def ended(self) -> bool:
        return self.over or self.vanished or self.gave_up

    @property
    def succeeded(self) -> bool:
        return self.natural and self.code == 0 and not self.lost


class Bodies:
    def __init__(self, breach: Callable[[str, str], None]) -> None:
        self._breach = breach
        self._all: dict[Key, Body] = {}
        self._crews: dict[tuple[str, int], dict[str, Body]] = defaultdict(dict)
        self._highest: dict[str, tuple[int, int]] = {}
        self._sealed: dict[str, tuple[int, int]] = {}

    def of(self, learner: Any) -> Body:
        return self._all[learner.job, learner.attempt, learner.name]

    def crew(self, job_id: str, attempt: int) -> Mapping[str, Body]:
        return self._crews[job_id, attempt]

    def present(self, job_id: str) -> list[str]:
        return [f"{key[1]}/{key[2]}" for key, body in self._all.items() if key[0] == job_id and body.present]

    def load(self) -> dict[str, tuple[float, float]]:
        """Node -> what the learners that are there hold of it."""
        out: dict[str, tuple[float, float]] = {}
        for body in self._all.values():
            if body.present:
                cpus, gpus = out.get(body.node, (0.0, 0.0))
                out[body.node] = (cpus + body.cpus, gpus + body.gpus)
        return out

    # --- fences ------------------------------------------------------------------------

    def fenced(
        self, job_id: str, attempt: int, term: int, what: str, *, makes: bool = False, seals: bool = False
    ) -> None:
        """A call took effect. None may under a lower (attempt, term) than one before, nor make after the end."""
        pair, highest, sealed = (attempt, term), self._highest.get(job_id, (0, 0)), self._sealed.get(job_id, (0, 0))
        if pair < highest or (makes and pair <= sealed):
            self._breach("every stale write is refused", f"{what} took effect after {max(highest, sealed)}")
        self._highest[job_id] = max(pair, highest)
        if seals:
            self._sealed[job_id] = max(pair, sealed)

    # --- lives -----------------------------------------------------------------------------

    def made(self, step: str, plan: Any, there: Sequence[Any], needs: Mapping[str, tuple[float, float]]) -> None:
        for learner in there:
            key = (learner.job, learner.attempt, learner.name)
            if learner.attempt == plan.attempt and key not in self._all:
                cpus, gpus = needs[learner.name]
                body = Body(learner.plan.node, cpus, gpus)
                self._all[key] = self._crews[key[:2]][learner.name] = body
        if step == "activate":
            for learner in there:
                self.of(learner).active = True

    def started(self, learner: Any) -> None:
        body, what = self.of(learner), f"{learner.job}/{learner.attempt}/{learner.name}"
        if body.started or learner.runs > 1:
            self._breach("one live fenced attempt", f"{what} was started twice")
        if body.over:
            self._breach("one live fenced attempt", f"{what} was started after its end")
        body.started = body.alive = True
        for (job_id, attempt, name), other in self._all.items():
            if job_id == learner.job and attempt != learner.attempt and other.alive:
                self._breach("one live fenced attempt", f"{what} started while {attempt}/{name} still ran")

    def ends_by_itself(self, learner: Any, code: int | None, *, lost: bool) -> None:
        """Said just before it ends. One that had been told to stop ends as one that obeys."""
        body = self.of(learner)
        body.itself, body.natural = True, not learner.stop_cause
        body.code, body.lost = None if lost else code, lost

    def ended(self, learner: Any, now: float) -> None:
        body = self.of(learner)
        body.alive, body.over, body.at = False, True, now
        if not body.itself and not learner.exit.stop_cause:
            what = f"{learner.job}/{learner.attempt}/{learner.name}"
            self._breach("no end without its cause", f"{what} was ended by the platform, and nothing says so")
        if body.itself and body.natural and learner.exit.stop_cause:
            self._breach(
                "no exit code lost", f"{learner.job}/{learner.name} ended by itself, and is said to have obeyed"
            )

    def removed(self, learner: Any) -> None:
        body = self._all.get((learner.job, learner.attempt, learner.name))
        if body is not None:
            body.present = body.alive = False
