"""The checker's rules on learners, their processes and the fences of the cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Key = tuple[str, int, str, int]
"""Job, attempt, learner, run."""


@dataclass
class LearnerRecord:
    """What really happened to one run of a learner."""

    node: str
    cpus: float
    gpus: float
    run: int = 1
    present: bool = True
    """It exists on the cluster."""
    active: bool = False
    prepared: bool = False
    """Its helper has fetched all that it needs."""
    started: bool = False
    alive: bool = False
    """Its process runs."""
    over: bool = False
    """Its process ended, or was stopped before it started."""
    natural: bool = False
    """It ended by itself, and had no stop mark."""
    ended_by_itself: bool = False
    """The simulation ended it, not the platform."""
    code: int | None = None
    lost: bool = False
    """Its end was not observed."""
    vanished: bool = False
    """It disappeared without a trace, with its node."""
    forged: bool = False
    """Somebody else has reported its success while it ran."""
    helper_failed: bool = False
    stored: bool = False
    """Its results are in the object store."""
    ended_at: float = 0.0
    """Seconds of virtual time."""
    made_again: bool = False
    """This run was activated before: it may not be activated again."""
    known_at: float = 0.0
    """When the cluster had the record of its end."""

    @property
    def holds(self) -> bool:
        """It exists on the cluster, or its process still runs there."""
        return self.present or (self.alive and not self.vanished)

    @property
    def ended(self) -> bool:
        return self.over or self.vanished or self.helper_failed

    @property
    def may_be_replaced(self) -> bool:
        """Nothing of this run can still run: it ended by itself, or the cluster has lost it."""
        return self.ended_by_itself or self.vanished or self.helper_failed

    @property
    def succeeded(self) -> bool:
        return self.natural and self.code == 0 and not self.lost


ONE_RUN = "only one run of a learner at a time"


def _key(learner: Any) -> Key:
    return learner.job, learner.attempt, learner.name, learner.plan.run


class LearnerChecker:
    """Records what happens to learners, and checks it."""

    def __init__(self, breach: Callable[[str, str], None]) -> None:
        """``breach``: records a breach: (rule, what broke it)."""
        self._breach = breach
        self._all: dict[Key, LearnerRecord] = {}
        self._gangs: dict[tuple[str, int], dict[str, LearnerRecord]] = defaultdict(dict)
        self._highest: dict[str, tuple[int, int]] = {}
        self._sealed: dict[str, tuple[int, int]] = {}

    def record_of(self, learner: Any) -> LearnerRecord:
        return self._all[_key(learner)]

    def gang(self, job_id: str, attempt: int) -> Mapping[str, LearnerRecord]:
        """The learners of the attempt by name, each in its latest run."""
        return self._gangs[job_id, attempt]

    def present(self, job_id: str) -> list[str]:
        return [f"{key[1]}/{key[2]}" for key, record in self._all.items() if key[0] == job_id and record.holds]

    def used_by_node(self) -> dict[str, tuple[float, float]]:
        """Returns node -> (CPUs, GPUs) that the learners on it hold."""
        used: dict[str, tuple[float, float]] = {}
        for record in self._all.values():
            if record.present:
                cpus, gpus = used.get(record.node, (0.0, 0.0))
                used[record.node] = (cpus + record.cpus, gpus + record.gpus)
        return used

    # --- fences ------------------------------------------------------------------------

    def check_fence(
        self, job_id: str, attempt: int, term: int, what: str, *, creates: bool = False, seals: bool = False
    ) -> None:
        """A call took effect: its (attempt, term) is not lower than before, and it creates nothing after a teardown."""
        pair, highest, sealed = (attempt, term), self._highest.get(job_id, (0, 0)), self._sealed.get(job_id, (0, 0))
        if pair < highest or (creates and pair <= sealed):
            self._breach("every stale write is refused", f"{what} took effect after {max(highest, sealed)}")
        self._highest[job_id] = max(pair, highest)
        if seals:
            self._sealed[job_id] = max(pair, sealed)

    def carried_out(self, job_id: str, pair: tuple[int, int], *, seals: bool) -> None:
        """A call under this (attempt, term) was answered: what is lower activates nothing from now on."""
        self._highest[job_id] = max(pair, self._highest.get(job_id, (0, 0)))
        if seals:
            self._sealed[job_id] = max(pair, self._sealed.get(job_id, (0, 0)))

    def check_activation(self, job_id: str, attempt: int, term: int, what: str) -> None:
        """A pod was activated: not after a call of a later pair was answered, nor after a teardown."""
        pair, highest, sealed = (attempt, term), self._highest.get(job_id, (0, 0)), self._sealed.get(job_id, (0, 0))
        if pair < highest or pair <= sealed:
            self._breach("every stale write is refused", f"{what} under term {term} after {max(highest, sealed)}")

    # --- learners --------------------------------------------------------------------------

    def made(self, learner: Any, need: tuple[float, float], *, owned: bool) -> LearnerRecord | None:
        """A learner was made, inert. Returns the record of its run before. ``owned``: it counts as present."""
        key = _key(learner)
        before = self._gangs[key[:2]].get(learner.name)
        if key in self._all and not owned:
            return before
        record = LearnerRecord(learner.plan.node, *need, run=learner.plan.run, present=owned)
        record.made_again = key in self._all and self._all[key].active
        self._all[key] = self._gangs[key[:2]][learner.name] = record
        return before

    def step_done(
        self, step: str, plan: Any, learners: Sequence[Any], needs: Mapping[str, tuple[float, float]]
    ) -> list[tuple[Any, LearnerRecord | None]]:
        """Returns the learners that this step has made for a later run, each with the record of the run before."""
        again: list[tuple[Any, LearnerRecord | None]] = []
        for learner in learners:
            key = _key(learner)
            if learner.attempt == plan.attempt and key not in self._all:
                cpus, gpus = needs[learner.name]
                record = LearnerRecord(learner.plan.node, cpus, gpus, run=learner.plan.run)
                if record.run > 1:
                    again.append((learner, self._gangs[key[:2]].get(learner.name)))
                self._all[key] = self._gangs[key[:2]][learner.name] = record
        if step == "activate":
            for learner in learners:
                self.record_of(learner).active = True
        return again

    def started(self, learner: Any) -> None:
        record, what = self.record_of(learner), f"{learner.job}/{learner.attempt}/{learner.name}"
        if record.started or learner.runs > 1:
            self._breach("only one attempt runs at a time", f"{what} was started twice")
        if record.over:
            self._breach("only one attempt runs at a time", f"{what} was started after its end")
        record.started = record.alive = True
        for (job_id, attempt, name, run), other in self._all.items():
            if job_id != learner.job or other is record or not other.alive:
                continue
            if attempt != learner.attempt:
                self._breach("only one attempt runs at a time", f"{what} started while {attempt}/{name} still ran")
            elif name == learner.name:
                self._breach(ONE_RUN, f"{what} started in run {record.run} while it still ran in run {run}")

    def ends_by_itself(self, learner: Any, code: int | None, *, lost: bool) -> None:
        """The simulation is about to end a process. With a stop mark that end is not natural."""
        record = self.record_of(learner)
        record.ended_by_itself, record.natural = True, not learner.stop_cause
        record.code, record.lost = None if lost else code, lost

    def ended(self, learner: Any, now: float) -> None:
        record = self.record_of(learner)
        record.alive, record.over, record.ended_at, record.known_at = False, True, now, now
        if not record.ended_by_itself and not learner.exit.stop_cause:
            what = f"{learner.job}/{learner.attempt}/{learner.name}"
            self._breach("every end has its cause", f"{what} was ended by the platform, and has no stop cause")
        if record.ended_by_itself and record.natural and learner.exit.stop_cause:
            self._breach(
                "no exit code lost",
                f"{learner.job}/{learner.name} ended by itself, and has a stop cause",
            )

    def removed(self, learner: Any) -> None:
        record = self._all.get(_key(learner))
        if record is not None:
            record.present = record.alive = False
