"""The state of a job that is written to: committed offsets of its sources, its series, its counts of lines and points.

The ledger decides which parts of a batch are new; it does no I/O. A batch is stored only if it begins at its source's
committed offset and its source has not ended; otherwise nothing of it is new. Each new line and point gets the next
sequence number, so there are no gaps.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from services.core.adapters.sqlite.metrics.segments import encode
from services.core.adapters.sqlite.metrics.tallies import Tally, context_text
from services.core.domain.errors import InvalidRequest
from services.core.ports.metric_store import (
    DEFAULT_BOUNDS,
    Batch,
    JobBounds,
    LogLine,
    SourceId,
    SourceState,
    Stored,
    StoredLine,
    StoredPoint,
)

_INT64: Final = 2**63


@dataclass(frozen=True, slots=True)
class Prepared:
    """A valid batch, with its lines encoded."""

    batch: Batch
    block: bytes = b""
    crc: int = 0


def prepare(batch: Batch) -> Prepared:
    """Validates and encodes a batch. Raises InvalidRequest if it cannot come from a source or cannot be stored."""
    start, end = batch.start, batch.end
    if not 0 <= start <= end < _INT64:
        raise InvalidRequest(f"a batch begins at a byte and ends at a later one, not from {start} to {end}")
    if not all(start <= entry.offset < end for rows in (batch.lines, batch.points) for entry in rows):
        raise InvalidRequest(f"a line or point is outside its batch, which is bytes {start} to {end}")
    if not all(-_INT64 <= number < _INT64 for number in _numbers(batch)):
        raise InvalidRequest("steps, times and the numbers of a source are 64-bit integers")
    try:
        f"{batch.source.role}{batch.source.source}".encode()
        for point in batch.points:
            "".join((point.name, *point.context, *point.context.values())).encode()
        block = encode(batch.lines) if batch.lines else b""
    except UnicodeEncodeError:
        raise InvalidRequest("a line, a source or the name of a metric is not valid Unicode") from None
    return Prepared(batch, block, zlib.crc32(block))


def _numbers(batch: Batch) -> Iterator[int]:
    source = batch.source
    yield from (source.attempt, source.rank, source.run, source.generation)
    yield from (line.time_ms for line in batch.lines)
    for point in batch.points:
        yield point.time_ms
        if point.step is not None:
            yield point.step


@dataclass(slots=True)
class Source:
    id: int
    source: SourceId
    committed: int = 0
    final: bool = False

    def row(self) -> tuple[Any, ...]:
        source = self.source
        key = (source.attempt, source.role, source.rank, source.run, source.source, source.generation)
        return (self.id, *key, self.committed, self.final)


@dataclass(slots=True)
class Series:
    """The points of one name and context that one learner reported in one attempt."""

    id: int
    attempt: int
    rank: int
    name: str
    context: str
    """JSON, keys in order."""
    last_seq: int = 0
    tally: Tally = field(default_factory=Tally)

    def row(self) -> tuple[Any, ...]:
        return (self.id, self.attempt, self.rank, self.name, self.context, self.last_seq)


@dataclass(frozen=True, slots=True)
class NewBlock:
    """The lines of one batch, to be written to a segment."""

    source: int
    first: int
    """Sequence number of the first line."""
    prepared: Prepared

    def row(self, segment: int, position: int) -> tuple[Any, ...]:
        lines = self.prepared.batch.lines
        times = [line.time_ms for line in lines]
        place = (segment, position, len(self.prepared.block), self.prepared.crc)
        return (self.first + len(lines) - 1, self.first, self.source, *place, min(times), max(times))


@dataclass(slots=True)
class Change:
    """The rows that one transaction writes."""

    sources: dict[int, Source] = field(default_factory=dict)
    series: dict[int, Series] = field(default_factory=dict)
    blocks: list[NewBlock] = field(default_factory=list)
    points: list[tuple[Any, ...]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Lines and points that are beyond a bound, by its name."""


@dataclass(slots=True)
class Ledger:
    lines: int
    points: int
    sources: dict[SourceId, Source]
    series: dict[tuple[int, int, str, str], Series]
    """By (attempt, rank, name, context)."""
    bounds: JobBounds = DEFAULT_BOUNDS
    log_bytes: int = 0
    """Bytes of the stored blocks."""
    left_out: Counter[str] = field(default_factory=Counter)
    """All lines and points that are beyond a bound, by its name."""

    def take(self, prepared: Prepared, change: Change) -> int:
        """Adds what is new of the batch to ``change``; returns its source's offset once that is committed."""
        batch = prepared.batch
        source = self.sources.get(batch.source)
        if source is None and len(self.sources) >= self.bounds.sources:
            self._leave_out("sources", max(1, len(batch.lines) + len(batch.points)), change)
            return batch.end
        source = source or Source(len(self.sources) + 1, batch.source)
        if batch.start != source.committed or source.final or not (batch.end > batch.start or batch.final):
            return source.committed
        self.sources[batch.source] = source
        source.committed, source.final = batch.end, batch.final
        change.sources[source.id] = source
        if batch.lines:
            self._take_lines(source, prepared, change)
        self._take_points(source, self._points_within(batch, change), change, most_series=self.bounds.series)
        return source.committed

    def _take_lines(self, source: Source, prepared: Prepared, change: Change) -> None:
        """Adds the lines. The first ones beyond the bound are replaced by a line that says so; none follow it.

        ``left_out`` is stored: after a restart, too, no small batch for which there is room makes a gap in the log.
        """
        lines = prepared.batch.lines
        is_full = self.left_out["log_bytes"] > 0
        if is_full or self.log_bytes + len(prepared.block) > self.bounds.log_bytes:
            self._leave_out("log_bytes", len(lines), change)
            if is_full:
                return
            prepared = _notice(prepared.batch, self.bounds)
        change.blocks.append(NewBlock(source.id, self.lines + 1, prepared))
        self.lines += len(prepared.batch.lines)
        self.log_bytes += len(prepared.block)

    def _points_within(self, batch: Batch, change: Change) -> Batch:
        """The batch with the points for which there is room."""
        room = max(0, self.bounds.points - self.points)
        if len(batch.points) <= room:
            return batch
        self._leave_out("points", len(batch.points) - room, change)
        return replace(batch, points=batch.points[:room])

    def _leave_out(self, bound: str, count: int, change: Change) -> None:
        self.left_out[bound] += count
        change.left_out[bound] += count

    def begin(self, states: Sequence[SourceState], change: Change) -> None:
        """Enters the sources of a job that is loaded, with their offsets."""
        for state in states:
            source = Source(len(self.sources) + 1, state.source, state.committed, state.final)
            self.sources[state.source] = change.sources[source.id] = source

    def load(self, part: Stored, change: Change) -> None:
        """Adds lines or points with their sequence numbers. Raises InvalidRequest if these are not the next ones."""
        entries: Sequence[StoredLine | StoredPoint] = part
        for source, run in itertools.groupby(entries, key=lambda entry: entry.source):
            rows = list(run)
            lines = [row.line for row in rows if isinstance(row, StoredLine)]
            points = [row.point for row in rows if isinstance(row, StoredPoint)]
            reached = self.lines if lines else self.points
            known = self.sources.get(source)
            if known is None or [row.seq for row in rows] != list(range(reached + 1, reached + 1 + len(rows))):
                raise InvalidRequest(f"lines or points are missing, or unknown, after number {reached}")
            prepared = prepare(Batch(source, 0, max(known.committed, 1), lines, points))
            if lines:
                change.blocks.append(NewBlock(known.id, self.lines + 1, prepared))
                self.lines += len(lines)
            self._take_points(known, prepared.batch, change, most_series=None)

    def _take_points(self, source: Source, batch: Batch, change: Change, *, most_series: int | None) -> None:
        """Adds the points. ``most_series``: points of further series are left out; None: there is no bound."""
        seq, known, touched, rows, isnan = self.points, self.series, change.series, change.points, math.isnan
        attempt, rank, source_id = batch.source.attempt, batch.source.rank, source.id
        for point in batch.points:
            key = (attempt, rank, point.name, context_text(point.context))
            series = known.get(key)
            if series is None:
                if most_series is not None and len(known) >= most_series:
                    self._leave_out("series", 1, change)
                    continue
                series = known[key] = Series(len(known) + 1, *key)
            seq += 1
            series.last_seq = seq
            series.tally.add(point.value, point.step)
            touched[series.id] = series
            value = None if isnan(point.value) else point.value
            rows.append((seq, series.id, source_id, point.offset, point.time_ms, point.step, value))
        self.points = seq


def _notice(batch: Batch, bounds: JobBounds) -> Prepared:
    """The batch with one line in place of its lines."""
    text = (
        f"[weft: this job has stored {bounds.log_bytes} bytes of log lines, which is the most "
        "(WEFT_METRICS_JOB_LOG_BYTES); later lines are only in its files (weft download)]"
    )
    line = LogLine(offset=batch.lines[0].offset, time_ms=batch.lines[0].time_ms, text=text)
    return prepare(replace(batch, lines=[line]))
