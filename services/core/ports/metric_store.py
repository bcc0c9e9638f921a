"""Log lines and metric points of jobs, each stored exactly once.

A *source* is one growing file of one learner process, identified by (attempt, role, rank, run, source, generation).
Its bytes are taken in strictly in order: an ``append`` names the offset at which it begins and ends, and is stored
only if it begins where the store's ``committed_offset`` of that source stands; else nothing is stored and the committed
offset is answered, from which the sender goes on. Offset, lines and points become durable together.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class SourceId:
    attempt: int
    role: str
    rank: int
    run: int
    """1, 2, ...: the process's start within the attempt."""
    source: str
    """stdout | stderr | metrics.jsonl | ..."""
    generation: int = 0
    """Rises when the file was replaced or truncated."""


@dataclass(frozen=True, slots=True)
class LogLine:
    offset: int
    """Of the line's first byte in its source."""
    time_ms: int
    text: str
    """Without its newline; at most 16 KiB, longer ones are split and ``partial``."""
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    offset: int
    time_ms: int
    name: str
    step: int | None
    value: float
    """NaN and infinities are kept."""
    context: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """Source bytes [start, end) and what they contained."""

    source: SourceId
    start: int
    end: int
    lines: Sequence[LogLine] = ()
    points: Sequence[Point] = ()
    final: bool = False
    """The source has ended: nothing comes after ``end``."""


@dataclass(frozen=True, slots=True)
class StoredLine:
    seq: int
    """1, 2, 3, ... without gap within the job: the resume token of followers."""
    source: SourceId
    line: LogLine

    @property
    def stream(self) -> str:
        return self.source.source


@dataclass(frozen=True, slots=True)
class StoredPoint:
    seq: int
    """1, 2, 3, ... without gap within the job."""
    source: SourceId
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class LineQuery:
    after_seq: int = 0
    before_seq: int | None = None
    rank: int | None = None
    role: str | None = None
    attempt: int | None = None
    stream: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    search: str | None = None
    """A regular expression (RE2: no look-around, no back-references), searched for in the text."""
    tail: int | None = None
    """Only the last so many of those that match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointQuery:
    after_seq: int = 0
    names: tuple[str, ...] = ()
    rank: int | None = None
    attempt: int | None = None
    max_points: int | None = None
    """Thin out each series to about so many, keeping minima and maxima."""


@dataclass(frozen=True, slots=True)
class SourceState:
    source: SourceId
    committed: int
    final: bool


@dataclass(frozen=True, slots=True)
class Extent:
    """What is stored of a job at one moment: the lines and points up to these, from so much of these sources."""

    lines: int
    points: int
    sources: Sequence[SourceState]


Stored: TypeAlias = Sequence[StoredLine] | Sequence[StoredPoint]


class MetricStore(Protocol):
    async def append(self, job_id: str, batches: Sequence[Batch]) -> Sequence[int]:
        """Stores batches durably; the committed offset of each batch's source afterwards, in the same order.

        A batch whose start is not the committed offset, or whose source has ended, stores nothing. NoSpace where the
        disk is full; NotFound where the job was deleted; InvalidRequest, and none of these batches is stored, where one
        cannot be (a line outside its batch's bytes, text that is not Unicode).
        """
        ...

    async def committed(self, job_id: str, attempt: int, rank: int) -> Sequence[SourceState]:
        """The sources of a learner that are known."""
        ...

    async def lines(self, job_id: str, query: LineQuery, *, limit: int = 1000) -> Sequence[StoredLine]:
        """The first ``limit`` lines by seq: of those that match, or of the last ``tail`` of them.

        A job nothing was stored of has none. InvalidRequest where ``search`` is no pattern; TooLarge where there was
        too much to look through.
        """
        ...

    async def points(self, job_id: str, query: PointQuery, *, limit: int = 10_000) -> Sequence[StoredPoint]:
        """Points by seq, every one that was reported."""
        ...

    async def series(self, job_id: str, query: PointQuery) -> Sequence[StoredPoint]:
        """Curves: for each (name, context, rank) of the newest attempt that reported any point (or of the attempt asked
        for) the latest value of each step, by step; points without a step follow, each for itself. ``after_seq`` is
        not looked at.
        """
        ...

    async def latest(self, job_id: str) -> Mapping[str, StoredPoint]:
        """The last point of each name, whoever reported it."""
        ...

    async def counts(self, job_id: str) -> tuple[int, int]:
        """(lines, points) stored: also the highest seq of each."""
        ...

    async def extent(self, job_id: str) -> Extent:
        """How far the job is stored now, and all its sources: with the lines and points up to there, all there is."""
        ...

    async def load(self, job_id: str, sources: Sequence[SourceState], parts: AsyncIterable[Stored]) -> None:
        """Stores a job as it was elsewhere, sequence numbers and all, in place of whatever is stored of it here.

        ``parts``: its lines and its points, each in the order of their sequence numbers; InvalidRequest where one is
        missing. Nothing of them is there before all are. A job that was deleted here is there again.
        """
        ...

    async def delete(self, job_id: str) -> None:
        """Forgets the job for good. Done already is done."""
        ...

    def damaged(self) -> Mapping[str, str]:
        """Job -> why, of those that were found to be damaged: every call for one raises Quarantined."""
        ...

    async def recheck(self, job_id: str) -> None:
        """Reads all of a damaged job; where it is sound again it is damaged no more."""
        ...

    async def ping(self) -> None: ...

    async def close(self) -> None: ...
