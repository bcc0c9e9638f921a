"""How far each learner says it is. In memory: heartbeats would drown etcd."""

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
    seen_ms: int
    progress: float = UNKNOWN
    eta_ms: int = UNKNOWN


class Presence:
    def __init__(self, clock: Clock, *, remember_s: float) -> None:
        self._clock, self._remember_ms = clock, round(remember_s * 1000)
        self._jobs: dict[str, dict[str, _Learner]] = {}

    def seen(self, learner: LearnerIdentity) -> None:
        """Something came from it. A former attempt's learner says nothing about its successor of the same name."""
        known = self._jobs.setdefault(learner.job, {}).get(learner.name)
        if known is not None and known.attempt == learner.attempt:
            known.seen_ms = self._clock.now_ms()
        elif known is None or known.attempt < learner.attempt:
            self._jobs[learner.job][learner.name] = _Learner(learner.attempt, self._clock.now_ms())

    def tell_progress(self, learner: LearnerIdentity, progress: float, eta_ms: int) -> None:
        """``progress`` from 0 to 1; anything else, NaN too, is unknown. The learner must have been ``seen``."""
        known = self._jobs[learner.job][learner.name]
        if known.attempt == learner.attempt:
            known.progress = progress if 0 <= progress <= 1 else UNKNOWN
            known.eta_ms = max(UNKNOWN, eta_ms)

    def progress(self, job_id: str) -> tuple[float, int]:
        """(progress, eta_ms) of the newest attempt: of its slowest learner that tells any. Negative: unknown."""
        learners = self._jobs.get(job_id, {}).values()
        newest = max((one.attempt for one in learners), default=0)
        told = [one for one in learners if one.attempt == newest]
        progress = min((one.progress for one in told if one.progress >= 0), default=UNKNOWN)
        return progress, max((one.eta_ms for one in told), default=UNKNOWN)

    def forget(self, job_id: str) -> None:
        self._jobs.pop(job_id, None)

    def __len__(self) -> int:
        """Learners that are remembered."""
        return sum(len(learners) for learners in self._jobs.values())

    async def forget_old(self) -> None:
        """Forgets the jobs of which nothing was heard for ``remember_s``, once a minute; for ever."""
        while True:
            await self._clock.sleep(_FORGET_EVERY_S)
            self._forget_old()

    def _forget_old(self) -> None:
        oldest = self._clock.now_ms() - self._remember_ms
        gone = [job for job, learners in self._jobs.items() if all(one.seen_ms < oldest for one in learners.values())]
        for job_id in gone:
            del self._jobs[job_id]
