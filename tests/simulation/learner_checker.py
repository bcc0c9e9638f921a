"""The checker's record of what is physical: learners, their processes, and the fences of the cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Key = tuple[str, int, str]


@dataclass
class LearnerRecord:
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
    """It ended by ended_by_itself: nobody had told it to stop."""
    ended_by_itself: bool = False
    code: int | None = None
    lost: bool = False
    vanished: bool = False
    """It went without a trace, with its machine."""
    helper_failed: bool = False
    stored: bool = False
    at: float = 0.0
    """When it ended."""

    @property
    def ended(self) -> bool:
        return self.over or self.vanished or self.helper_failed

    @property
    def succeeded(self) -> bool:
        return self.natural and self.code == 0 and not self.lost


class LearnerChecker:
    def __init__(self, breach: Callable[[str, str], None]) -> None:
        self._breach = breach
        self._all: dict[Key, LearnerRecord] = {}
        self._gangs: dict[tuple[str, int], dict[str, LearnerRecord]] = defaultdict(dict)
        self._highest: dict[str, tuple[int, int]] = {}
        self._sealed: dict[str, tuple[int, int]] = {}

    def record_of(self, learner: Any) -> LearnerRecord:
        return self._all[learner.job, learner.attempt, learner.name]

    def gang(self, job_id: str, attempt: int) -> Mapping[str, LearnerRecord]:
        return self._gangs[job_id, attempt]

    def present(self, job_id: str) -> list[str]:
        return [f"{key[1]}/{key[2]}" for key, record in self._all.items() if key[0] == job_id and record.present]

    def used_by_node(self) -> dict[str, tuple[float, float]]:
        """Node -> what the learners that are there hold of it."""
        out: dict[str, tuple[float, float]] = {}
        for record in self._all.values():
            if record.present:
                cpus, gpus = out.get(record.node, (0.0, 0.0))
                out[record.node] = (cpus + record.cpus, gpus + record.gpus)
        return out

    # --- fences ------------------------------------------------------------------------

    def check_fence(
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

    def step_done(self, step: str, plan: Any, there: Sequence[Any], needs: Mapping[str, tuple[float, float]]) -> None:
        for learner in there:
            key = (learner.job, learner.attempt, learner.name)
            if learner.attempt == plan.attempt and key not in self._all:
                cpus, gpus = needs[learner.name]
                record = LearnerRecord(learner.plan.node, cpus, gpus)
                self._all[key] = self._gangs[key[:2]][learner.name] = record
        if step == "activate":
            for learner in there:
                self.record_of(learner).active = True

    def started(self, learner: Any) -> None:
        record, what = self.record_of(learner), f"{learner.job}/{learner.attempt}/{learner.name}"
        if record.started or learner.runs > 1:
            self._breach("only one attempt runs at a time", f"{what} was started twice")
        if record.over:
            self._breach("only one attempt runs at a time", f"{what} was started after its end")
        record.started = record.alive = True
        for (job_id, attempt, name), other in self._all.items():
            if job_id == learner.job and attempt != learner.attempt and other.alive:
                self._breach("only one attempt runs at a time", f"{what} started while {attempt}/{name} still ran")

    def ends_by_itself(self, learner: Any, code: int | None, *, lost: bool) -> None:
        """Said just before it ends. One that had been told to stop ends as one that obeys."""
        record = self.record_of(learner)
        record.ended_by_itself, record.natural = True, not learner.stop_cause
        record.code, record.lost = None if lost else code, lost

    def ended(self, learner: Any, now: float) -> None:
        record = self.record_of(learner)
        record.alive, record.over, record.at = False, True, now
        if not record.ended_by_itself and not learner.exit.stop_cause:
            what = f"{learner.job}/{learner.attempt}/{learner.name}"
            self._breach("every end has its cause", f"{what} was ended by the platform, and nothing says so")
        if record.ended_by_itself and record.natural and learner.exit.stop_cause:
            self._breach(
                "no exit code lost",
                f"{learner.job}/{learner.name} ended by ended_by_itself, and is said to have obeyed",
            )

    def removed(self, learner: Any) -> None:
        record = self._all.get((learner.job, learner.attempt, learner.name))
        if record is not None:
            record.present = record.alive = False
