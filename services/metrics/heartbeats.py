"""The progress that learners report with their heartbeats. Kept in memory: etcd could not take so many writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services.core.domain.tokens import LearnerIdentity
from services.core.ports.clock import Clock

UNKNOWN: Final = -1
_FORGET_EVERY_S: Final = 60.0


@dataclass(slots=True)
class _Learner:
    attempt: int
    last_seen_ms: int
    progress: float = UNKNOWN
    eta_ms: int = UNKNOWN


class Heartbeats:
    def __init__(self, clock: Clock, *, remember_s: float) -> None:
        """``remember_s``: jobs without a sign of life for this many seconds are dropped."""
        self._clock, self._remember_ms = clock, round(remember_s * 1000)
        self._jobs: dict[str, dict[str, _Learner]] = {}

    def mark_seen(self, learner: LearnerIdentity) -> None:
        """Records a call of the learner. Calls of an earlier attempt do not count for the learner of that name."""
        known = self._jobs.setdefault(learner.job, {}).get(learner.name)
        if known is not None and known.attempt == learner.attempt:
            known.last_seen_ms = self._clock.now_ms()
        elif known is None or known.attempt < learner.attempt:
            self._jobs[learner.job][learner.name] = _Learner(learner.attempt, self._clock.now_ms())

    def set_progress(self, learner: LearnerIdentity, progress: float, eta_ms: int) -> None:
        """``progress`` from 0 to 1; other values and NaN mean unknown. Call ``mark_seen`` first."""
        known = self._jobs[learner.job][learner.name]
        if known.attempt == learner.attempt:
            known.progress = progress if 0 <= progress <= 1 else UNKNOWN
            known.eta_ms = max(UNKNOWN, eta_ms)

    def progress(self, job_id: str) -> tuple[float, int]:
        """(progress, eta_ms) of the slowest learner of the newest attempt that reports any; negative: unknown."""
        learners = self._jobs.get(job_id, {}).values()
        newest = max((learner.attempt for learner in learners), default=0)
        gang = [learner for learner in learners if learner.attempt == newest]
        progress = min((learner.progress for learner in gang if learner.progress >= 0), default=UNKNOWN)
        return progress, max((learner.eta_ms for learner in gang), default=UNKNOWN)

    def forget(self, job_id: str) -> None:
        self._jobs.pop(job_id, None)

    def __len__(self) -> int:
        """Number of learners kept."""
        return sum(len(learners) for learners in self._jobs.values())

    async def forget_old(self) -> None:
        """Once a minute, drops the jobs without a sign of life for ``remember_s``, until cancelled."""
        while True:
            await self._clock.sleep(_FORGET_EVERY_S)
            self._forget_old()

    def _forget_old(self) -> None:
        oldest = self._clock.now_ms() - self._remember_ms
        silent = [
            job_id
            for job_id, learners in self._jobs.items()
            if all(learner.last_seen_ms < oldest for learner in learners.values())
        ]
        for job_id in silent:
            del self._jobs[job_id]
