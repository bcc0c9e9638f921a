"""When each learner was last heard of, and how far it says it is. In memory: heartbeats would drown etcd.

Silence counts only while somebody listened. So the listening itself is watched: when this process was stopped or too
busy to take its turn, it says that it has been listening only since then.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from services.core.domain.tokens import LearnerIdentity
from services.core.ports.clock import Clock

UNKNOWN: Final = -1
_TURN_S: Final = 0.5
_FORGET_TURNS: Final = 120
_LATE_S: Final = 1.0
"""A turn that comes later than this means that calls may have waited, unheard."""


@dataclass(slots=True)
class _Learner:
    attempt: int
    seen_ms: int
    progress: float = UNKNOWN
    eta_ms: int = UNKNOWN


class Heartbeats:
    def __init__(self, clock: Clock, *, remember_s: float) -> None:
        self.listening_since_ms = clock.now_ms()
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

    def last_seen(self, job_id: str) -> Mapping[str, int]:
        """Learner -> Unix ms."""
        return {name: one.seen_ms for name, one in self._jobs.get(job_id, {}).items()}

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

    async def listen(self) -> None:
        """Watches that this process gets its turns, and forgets who is long gone; for ever."""
        for turn in itertools.count(1):
            before = self._clock.boottime()
            await self._clock.sleep(_TURN_S)
            if self._clock.boottime() - before > _TURN_S + _LATE_S:
                self.listening_since_ms = self._clock.now_ms()
            if turn % _FORGET_TURNS == 0:
                self._forget_old()

    def _forget_old(self) -> None:
        oldest = self._clock.now_ms() - self._remember_ms
        gone = [job for job, learners in self._jobs.items() if all(one.seen_ms < oldest for one in learners.values())]
        for job_id in gone:
            del self._jobs[job_id]
