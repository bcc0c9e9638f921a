"""The source of a learner's usage: samples that the helper takes itself, shipped like the points of a file.

Its offsets count samples. Samples that are not committed are in memory only: a helper that is killed loses some seconds
of usage, never any of the training's own points. A sample is taken every few seconds at first and less often later,
because each costs the platform a transaction: a training of days needs no point for each second.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from services.core.domain.usage import CPU, GPU, GPU_MEMORY, MEMORY, USAGE
from services.core.gen.weft.v1.metrics_pb2 import Source, SourceBatch
from services.helper.changes import Changes
from services.helper.usage import Usage, UsageReader

NAME: Final = "usage"
FIRST_S: Final = 1.0
"""The first sample is taken so long after the start: most jobs that fail run for seconds."""
LEAST_S: Final = 5.0
MOST_S: Final = 30.0
"""Shortest and longest pause between two samples."""
_SHARE: Final = 60
"""Between the two, the pause is this fraction of the learner's age."""
_KEPT: Final = 1_000
"""Samples that wait for the metrics service; then the oldest are dropped."""
_BATCH: Final = 100


@dataclass(frozen=True, slots=True)
class _Sample:
    time_ms: int
    values: tuple[tuple[str, float], ...]


class UsageSource:
    """Call ``refresh`` at least once a second, and ``next_batch`` and ``accept`` in turns until ``is_done``."""

    name: Final = NAME
    unsent: Final = 0
    """Bytes: samples are not worth a batch of their own."""

    def __init__(
        self,
        identity: Source,
        reader: UsageReader,
        *,
        clock: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock``: Unix ms."""
        self._identity = identity
        self._reader = reader
        self._clock = clock
        self._monotonic = monotonic
        self._samples: deque[_Sample] = deque(maxlen=_KEPT)
        self._position = 0
        self._batch: SourceBatch | None = None
        """Sent, not accepted: it is repeated unchanged."""
        self._exited = self._finished = False
        self._began = monotonic()
        self._due = self._began
        self._last: Usage | None = None

    @property
    def is_done(self) -> bool:
        return self._finished

    @property
    def may_have_lines(self) -> bool:
        return bool(self._samples) or self._batch is not None

    def matches(self, other: Source) -> bool:
        """Whether ``other`` is this source, of any generation."""
        own = self._identity
        return (own.attempt, own.rank, own.run, own.source) == (other.attempt, other.rank, other.run, other.source)

    def resume(self, generation: int, committed: int, *, final: bool) -> None:
        """Sets the committed offset, from the metrics service's answer to Hello."""
        del generation
        self._position, self._finished = committed, final

    def watch(self, changes: Changes) -> bool:
        """Nothing to watch: samples are taken by ``refresh``."""
        del changes
        return True

    def refresh(self) -> None:
        """Takes a sample if one is due."""
        now = self._monotonic()
        if self._exited or now < self._due:
            return
        last, usage = self._last, self._reader.read()
        self._due = now + (FIRST_S if last is None else min(MOST_S, max(LEAST_S, (now - self._began) / _SHARE)))
        if last is None:
            self._last = usage
        elif usage.clock_s > last.clock_s:  # else nothing was measured since
            self._last = usage
            if values := _values(last, usage):
                self._samples.append(_Sample(self._clock(), values))

    def finish(self) -> None:
        """The learner has exited: nothing more is measured."""
        self._exited = True

    def next_batch(self, max_bytes: int, max_lines: int) -> SourceBatch | None:
        """The next samples; None where there are none. The same batch again until ``accept`` is called."""
        del max_bytes, max_lines  # a batch is small
        if self._finished or (self._batch is None and not self._samples and not self._exited):
            return None
        if self._batch is None:
            samples = [self._samples.popleft() for _ in range(min(_BATCH, len(self._samples)))]
            self._batch = SourceBatch(source=self._identity, start=self._position, end=self._position + len(samples))
            for offset, sample in enumerate(samples, self._position):
                for name, value in sample.values:
                    self._batch.points.add(offset=offset, time_ms=sample.time_ms, name=name, value=value, context=USAGE)
            self._batch.final = self._exited and not self._samples
        return self._batch

    def accept(self, batch: SourceBatch, committed: int) -> None:
        """Takes the service's answer to a batch. One that began elsewhere than the service expected is dropped."""
        self._batch = None
        self._position = committed
        self._finished = batch.final and committed == batch.end


def _values(last: Usage, usage: Usage) -> tuple[tuple[str, float], ...]:
    """Name and value of each measured quantity. ``usage``: measured after ``last``."""
    values: list[tuple[str, float]] = []
    if usage.cpu_s is not None and last.cpu_s is not None:
        # The time of a process that ended is lost where its parent did not wait for it.
        spent_s = max(0.0, usage.cpu_s - last.cpu_s)
        values.append((CPU, round(spent_s / (usage.clock_s - last.clock_s), 3)))
    if usage.memory is not None:
        values.append((MEMORY, float(usage.memory)))
    if usage.gpus is not None and usage.gpu_memory is not None:
        values += [(GPU, round(usage.gpus, 3)), (GPU_MEMORY, float(usage.gpu_memory))]
    return tuple(values)
