"""The metric store: log lines and metric points of jobs, each stored exactly once.

A *source* is one growing file of one learner process, identified by (attempt, role, rank, run, source, generation).
Its bytes are appended strictly in order. A ``Batch`` names the range of bytes that it covers. It is stored only if its
``start`` is the source's committed offset; otherwise nothing is stored. Either way the sender gets the committed offset
and continues there. Offset, lines and points become durable together.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class SourceId:
    """Identifies a source within its job."""

    attempt: int
    role: str
    rank: int
    """Global rank, from 0."""
    run: int
    """Number of the process's start within the attempt, from 1."""
    source: str
    """stdout | stderr | metrics.jsonl | ..."""
    generation: int = 0
    """Rises by 1 each time the file was replaced or truncated."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a source."""

    offset: int
    """Offset of the line's first byte in its source."""
    time_ms: int
    """Unix ms."""
    text: str
    """Without the newline; at most 16 KiB. A longer line is split into several."""
    partial: bool = False
    """The line continues in the next one."""


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a metric."""

    offset: int
    """Offset in its source of the first byte of the line that reported it."""
    time_ms: int
    """Unix ms."""
    name: str
    step: int | None
    """Training step; None: reported without one."""
    value: float
    """May be NaN or infinite."""
    context: Mapping[str, str] = field(default_factory=dict)
    """Labels, e.g. split=train. Points of one name with different labels belong to different series."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The bytes [start, end) of a source, with the lines and points in them."""

    source: SourceId
    start: int
    end: int
    lines: Sequence[LogLine] = ()
    points: Sequence[Point] = ()
    final: bool = False
    """The source has ended: there are no bytes after ``end``."""


@dataclass(frozen=True, slots=True)
class StoredLine:
    """A line with its place in the job."""

    seq: int
    """1, 2, 3, ... without gap within the job. Followers resume after it."""
    source: SourceId
    line: LogLine

    @property
    def stream(self) -> str:
        """Returns the name of its source: stdout, stderr, ..."""
        return self.source.source


@dataclass(frozen=True, slots=True)
class StoredPoint:
    """A point with its place in the job."""

    seq: int
    """1, 2, 3, ... without gap within the job."""
    source: SourceId
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class LineQuery:
    """A filter of lines: a line matches if every given field does."""

    by_time: bool = False
    """In order of their times, over all sources; of equal times by seq. Else in order of seq."""
    after_seq: int = 0
    """Only lines after the line with this seq, in the order of the query; 0: all."""
    before_seq: int | None = None
    """Only lines before the line with this seq, in the order of the query."""
    rank: int | None = None
    role: str | None = None
    attempt: int | None = None
    stream: str | None = None
    """stdout, stderr, ..."""
    since_ms: int | None = None
    """Only lines of this time (Unix ms) or later."""
    until_ms: int | None = None
    """Only lines of this time (Unix ms) or earlier."""
    search: str | None = None
    """A regular expression (RE2: no look-around, no back-references), searched for in the text."""
    tail: int | None = None
    """Only the last so many of the lines that match."""


@dataclass(frozen=True, slots=True)
class LinePage:
    """Lines that match a query, in its order."""

    lines: Sequence[StoredLine]
    stopped_at: int | None = None
    """Not None: the time for one query is over. Lines beyond the line with this seq (with ``tail``: before it) are not
    searched yet, and a query that continues there will make progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointQuery:
    """A filter of points: a point matches if every given field does."""

    after_seq: int = 0
    """Only points with a greater seq."""
    names: tuple[str, ...] = ()
    """Any of these; empty: all but the usage of the hardware (``domain.usage``)."""
    usage: bool = False
    """Where ``names`` is empty: the usage of the hardware, too. Then no seq is left out, as a backup needs it."""
    rank: int | None = None
    attempt: int | None = None
    from_step: int | None = None
    """Only points of this step or a later one; points without a step do not match."""
    to_step: int | None = None
    """Only points of this step or an earlier one; points without a step do not match."""
    since_ms: int | None = None
    """Only points of this time (Unix ms) or later."""
    until_ms: int | None = None
    """Only points of this time (Unix ms) or earlier."""
    max_points: int | None = None
    """Reduces each series to about so many points, keeping minima, maxima, the first and the last step. To fewer if
    there are so many series that they would have more than about 100,000 points together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """What was reported of one metric: of a name and context, by the lowest rank of the newest attempt.

    That is the newest one that reported any but usage; for usage, the newest one that reported anything.
    Every reported value counts, also of a step that was reported again. ``last`` may be NaN; NaN is neither smallest
    nor largest. ``low`` and ``high`` are NaN where no number was reported.
    """

    name: str
    context: Mapping[str, str]
    rank: int
    count: int
    last: float
    last_step: int | None
    low: float
    low_step: int | None
    """Of equal values the first."""
    high: float
    high_step: int | None
    """Of equal values the first."""


@dataclass(frozen=True, slots=True)
class Column:
    """Values of a series at some steps, in order of steps."""

    steps: Sequence[int]
    values: Sequence[float]
    """The value of each of ``steps``; may be NaN or infinite. None, if there are more steps than were requested."""
    total: int | None = None
    """Number of steps of the series, if ``steps`` are only some of them."""

    @property
    def count(self) -> int:
        """Returns the number of steps of the series."""
        return len(self.steps) if self.total is None else self.total


@dataclass(frozen=True, slots=True)
class SourceState:
    """How far a source is stored."""

    source: SourceId
    committed: int
    """The committed offset: the bytes before it are stored."""
    final: bool
    """The source has ended at ``committed``."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What is stored of a job at one moment."""

    lines: int
    """seq of the last line; 0: none."""
    points: int
    """seq of the last point; 0: none."""
    sources: Sequence[SourceState]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBounds:
    """How much is stored of one job. What is beyond a bound is left out and counted; its source goes on."""

    log_bytes: int = 10 * 2**30
    """Bytes of log lines."""
    points: int = 50_000_000
    """Metric points; each takes about 60 bytes."""
    series: int = 10_000
    """Curves: (attempt, rank, name, labels)."""
    sources: int = 100_000
    """Files of learners; a file that is replaced or truncated becomes another one."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """The next bytes of one of a job's files."""

    name: str
    data: bytes


def even_places(count: int, most: int) -> list[int]:
    """At most ``most`` places of ``count`` (at least two), from 0, at equal distances, with the first and the last."""
    most = max(2, most)
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / (most - 1)) for place in range(most)]


DEFAULT_BOUNDS: Final = JobBounds()
Stored: TypeAlias = Sequence[StoredLine] | Sequence[StoredPoint]


class MetricStore(Protocol):
    """Lines and points by job."""

    async def append(self, job_id: str, batches: Sequence[Batch]) -> Sequence[int]:
        """Stores batches durably. Returns the committed offset of each batch's source afterwards, in the same order.

        A batch is not stored if its ``start`` is not the committed offset or its source has ended. Raises NoSpace where
        the disk is full and NotFound where the job was deleted. Lines and points beyond a bound of the job are left
        out; the offset advances all the same. Raises InvalidRequest, and stores none of the batches, where one is
        malformed (a line outside its batch's bytes, text that is not Unicode).
        """
        ...

    async def committed(self, job_id: str, attempt: int, rank: int) -> Sequence[SourceState]:
        """Returns the sources of one learner of which anything is stored."""
        ...

    async def lines(self, job_id: str, query: LineQuery, *, limit: int = 1000) -> Sequence[StoredLine]:
        """Returns the first ``limit`` matching lines in the query's order; with ``query.tail``, of the last ``tail``.

        Returns none for an unknown job. Raises InvalidRequest where ``search`` is not a valid pattern, and TooLarge
        where too many lines would have to be searched.
        """
        ...

    async def line_page(self, job_id: str, query: LineQuery, *, limit: int = 1000) -> LinePage:
        """As ``lines``, but returns what was found where too many lines would have to be searched."""
        ...

    async def points(self, job_id: str, query: PointQuery, *, limit: int = 10_000) -> Sequence[StoredPoint]:
        """Returns the first ``limit`` matching points by seq, all that were reported."""
        ...

    async def series(self, job_id: str, query: PointQuery) -> Sequence[StoredPoint]:
        """Returns curves: for each (name, context, rank) the latest value of each step, in order of steps.

        Points without a step follow. Only points of ``query.attempt`` count, or, without it, of the newest attempt that
        reported any but usage (for curves of usage: the newest that reported anything); of a window in steps or time
        only the points in it. ``query.after_seq`` is ignored.
        """
        ...

    async def latest(self, job_id: str) -> Mapping[str, StoredPoint]:
        """Returns the last stored point of each metric name, of any learner. Usage of the hardware is left out."""
        ...

    async def aggregates(self, job_id: str, names: Sequence[str] = ()) -> Sequence[Aggregate]:
        """Returns the aggregates of these metrics, in order of name and context; no names: of all but usage.

        The cost does not depend on the number of points.
        """
        ...

    async def usage(self, job_id: str) -> Sequence[Aggregate]:
        """Returns what each learner of the newest attempt uses of the hardware, by name and rank."""
        ...

    async def whole_columns(
        self, job_id: str, names: Sequence[str], context: Mapping[str, str] | None, *, most: int
    ) -> Mapping[str, Column]:
        """As ``columns``, at all steps of each series.

        Of more than ``most`` steps those at ``even_places``, and no values: the memory does not depend on their number.
        """
        ...

    async def columns(
        self, job_id: str, steps: Mapping[str, Sequence[int]], context: Mapping[str, str] | None
    ) -> Mapping[str, Column]:
        """Returns the latest values of metrics at these steps, by name; those without a series are left out.

        Of several series the first context (with ``context`` None) and the lowest rank of the newest attempt (as
        in ``Aggregate``) count.
        """
        ...

    async def counts(self, job_id: str) -> tuple[int, int]:
        """Returns how many (lines, points) are stored; these are also the highest seqs."""
        ...

    async def left_out(self, job_id: str) -> Mapping[str, int]:
        """Returns how many lines or points were left out for each bound that was reached, by its name in JobBounds."""
        ...

    async def extent(self, job_id: str) -> Extent:
        """Returns how much of the job is stored now. The lines and points up to there are all from its sources."""
        ...

    async def load(self, job_id: str, sources: Sequence[SourceState], parts: AsyncIterable[Stored]) -> None:
        """Replaces all that is stored of the job by lines and points from another store, with their seqs.

        ``parts``: its lines and its points, each in order of seq. Raises InvalidRequest where a seq is missing. Readers
        see nothing of the parts before all are stored. A deleted job exists again afterwards.
        """
        ...

    async def delete(self, job_id: str) -> None:
        """Removes all that is stored of the job for good. No error where there is nothing."""
        ...

    async def job_ids(self) -> Sequence[str]:
        """Returns the ids of all jobs of which anything is stored, in no order."""
        ...

    def files(self, job_id: str) -> AsyncGenerator[FilePart]:
        """Yields the files of a job as they are, damaged ones too; each file's parts follow one another.

        For another store of the same kind. The job must not be used meanwhile, nor have been used by this process.
        Raises NotFound where nothing is stored of the job.
        """
        ...

    async def load_files(self, job_id: str, parts: AsyncIterable[FilePart]) -> None:
        """Replaces all that is stored of the job by the files of another store, durably. As ``load`` otherwise.

        Raises InvalidRequest for a name that is not that of a job's file. Nothing is replaced if ``parts`` raises.
        """
        ...

    async def release(self, job_id: str) -> None:
        """Removes the files of a job that another store has now. It is not deleted: it may be loaded again.

        ``files`` yields all of them or, afterwards, none. No error where there is nothing.
        """
        ...

    def damaged(self) -> Mapping[str, str]:
        """Returns job id -> reason for the jobs whose files are known to be damaged. Calls for them raise Quarantined.

        Not a coroutine: it reads memory only.
        """
        ...

    async def recheck(self, job_id: str) -> None:
        """Reads all files of a damaged job again. A job whose files are sound is not damaged any more."""
        ...

    async def ping(self) -> None:
        """Raises NoSpace where the disk is full, and Unavailable where the store cannot be written."""
        ...

    async def close(self) -> None:
        """Closes connections and files."""
        ...
