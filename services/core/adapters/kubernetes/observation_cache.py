"""The last observation of each job, as long as nothing that it was computed from can have changed.

A job that just trains costs the API server nothing: its pods are watched anyway. An entry ends with each event of the
job's pods, with a new list (a gap in the watch, a forgotten version), and with each write of this process. While no
watch follows the pods none is used. After ``_MOST_AGE_S`` an entry ends in any case, so that a lost event hides a lost
learner no longer. Ages differ, so that jobs of one moment are not read again in one moment.

The helpers' reports are not watched here. They are read anew each time, and an entry counts for equal reports only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from services.core.ports.cluster import Observation

_LEAST_AGE_S: Final = 300.0
_MOST_AGE_S: Final = 600.0


@dataclass(slots=True, eq=False, weakref_slot=True)
class Reading:
    """One reading of a job: under way, or kept."""

    observation: Observation | None = None
    reports: object = None
    expires_s: float = 0.0


class ObservationCache:
    def __init__(self, is_current: Callable[[], bool], clock_s: Callable[[], float]) -> None:
        """``is_current``: whether a watch follows the pods now. ``clock_s``: a monotonic clock, seconds."""
        self._is_current, self._clock_s = is_current, clock_s
        self._readings: dict[str, Reading] = {}

    def get(self, job: str, reports: object) -> Observation | None:
        """The job's observation, if it was kept for equal ``reports`` and nothing has ended it."""
        kept = self._readings.get(job)
        if kept is None or kept.reports != reports or self._clock_s() >= kept.expires_s or not self._is_current():
            return None
        return kept.observation

    @contextmanager
    def reading(self, job: str) -> Generator[Reading]:
        """Around the reads of what an observation is computed from. A reading that is not kept is forgotten."""
        reading = self._readings[job] = Reading()
        try:
            yield reading
        finally:
            if reading.observation is None and self._readings.get(job) is reading:
                del self._readings[job]

    def keep(self, job: str, reading: Reading, observation: Observation, reports: object) -> None:
        """Keeps what was read within ``reading``, unless something has ended this reading meanwhile."""
        if self._readings.get(job) is reading:
            reading.observation, reading.reports = observation, reports
            reading.expires_s = self._clock_s() + random.uniform(_LEAST_AGE_S, _MOST_AGE_S)

    def invalidate(self, job: str) -> None:
        self._readings.pop(job, None)

    def invalidate_all(self) -> None:
        self._readings.clear()

    @contextmanager
    def writing(self, job: str) -> Generator[None]:
        """Around a write to the job's objects: what was read before or during it is not kept."""
        self.invalidate(job)
        try:
            yield
        finally:
            self.invalidate(job)
