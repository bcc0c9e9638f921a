"""What learners report with their heartbeats: progress, and what is fetched. In memory: etcd could not take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from services.core.domain.document import MAX_TIME_MS
from services.core.domain.startup import FETCHED
from services.core.domain.text import storable
from services.core.domain.tokens import LearnerIdentity
from services.core.ports.clock import Clock

UNKNOWN: Final = -1
_FORGET_EVERY_S: Final = 60.0


_MESSAGE_CHARS: Final = 500
_MOST_FETCHING: Final = 100
_BAR_CHARS: Final = 300
_MOST_BARS: Final = 100
_MOST_BYTES: Final = 2**53


class Fetching(NamedTuple):
    """A step of the start-up that a helper carries out."""

    step: str
    """code, data, environment or checkpoint."""
    began_ms: int
    """Unix ms."""
    message: str
    """The current activity, for people."""
    done_bytes: int | None
    """None: the activity counts none."""
    total_bytes: int | None
    """None: unknown."""


@dataclass(slots=True)
class _Learner:
    attempt: int
    last_seen_ms: int
    progress: float = UNKNOWN
    eta_ms: int = UNKNOWN
    fetching: Fetching | None = None
    bar: str = ""


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

    def set_fetching(self, learner: LearnerIdentity, fetching: Fetching | None) -> None:
        """None: nothing is fetched. What names an impossible step or number counts as None. As ``set_progress``."""
        known = self._jobs[learner.job][learner.name]
        if known.attempt == learner.attempt:
            is_possible = fetching is not None and _is_possible(fetching)
            known.fetching = _bounded(fetching) if fetching is not None and is_possible else None

    def fetching(self, job_id: str) -> Sequence[tuple[str, int, Fetching]]:
        """(learner, attempt, step) of learners of the newest attempt that are fetched for, by name; the first 100."""
        steps = [
            (name, learner.attempt, learner.fetching)
            for name, learner in self._gang(job_id)
            if learner.fetching is not None
        ]
        return steps[:_MOST_FETCHING]

    def set_bar(self, learner: LearnerIdentity, text: str) -> None:
        """Sets the progress bar that the learner draws; empty: none. As ``set_progress``."""
        known = self._jobs[learner.job][learner.name]
        if known.attempt == learner.attempt:
            known.bar = storable(text)[:_BAR_CHARS]

    def bars(self, job_id: str) -> Sequence[tuple[str, int, str]]:
        """(learner, attempt, progress bar) of learners of the newest attempt that draw one, by name; the first 100."""
        bars = [(name, learner.attempt, learner.bar) for name, learner in self._gang(job_id) if learner.bar]
        return bars[:_MOST_BARS]

    def progress(self, job_id: str) -> tuple[float, int]:
        """(progress, eta_ms) of the slowest learner of the newest attempt that reports any; negative: unknown."""
        gang = [learner for _, learner in self._gang(job_id)]
        progress = min((learner.progress for learner in gang if learner.progress >= 0), default=UNKNOWN)
        return progress, max((learner.eta_ms for learner in gang), default=UNKNOWN)

    def _gang(self, job_id: str) -> list[tuple[str, _Learner]]:
        """The learners of the newest attempt, by name."""
        learners = self._jobs.get(job_id, {})
        newest = max((learner.attempt for learner in learners.values()), default=0)
        return [(name, learner) for name, learner in sorted(learners.items()) if learner.attempt == newest]

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


def _is_possible(fetching: Fetching) -> bool:
    sizes = [size for size in (fetching.done_bytes, fetching.total_bytes) if size is not None]
    steps = {step.value for step in FETCHED}
    return (
        fetching.step in steps and 0 <= fetching.began_ms <= MAX_TIME_MS and all(size < _MOST_BYTES for size in sizes)
    )


def _bounded(fetching: Fetching) -> Fetching:
    return fetching._replace(message=storable(fetching.message)[:_MESSAGE_CHARS])
