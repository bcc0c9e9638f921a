"""MetricStore with a folder per job. Threads do all disk I/O; the event loop only dispatches it.

Appends to one job that wait together become one transaction and so two fsyncs (lines, then offsets and points): 1,000
ranks cost little more than one. An invalid append is refused alone. Writers, readers and searches have threads of their
own, so that long searches delay neither appends nor other reads.

Damaged files affect only their own job: every call for it raises Quarantined, and its files stay unchanged for repair.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw
import structlog

from services.core.adapters.sqlite.database import translated
from services.core.adapters.sqlite.metrics.curves import PointReader
from services.core.adapters.sqlite.metrics.job_file import JobFile
from services.core.adapters.sqlite.metrics.ledger import Prepared, prepare
from services.core.adapters.sqlite.metrics.lines import LineReader, compiled
from services.core.adapters.sqlite.metrics.open_jobs import GONE, OpenJobs
from services.core.adapters.sqlite.metrics.segments import SEGMENT_BYTES, Damaged
from services.core.adapters.sqlite.metrics.tallies import (
    context_text,
    read_aggregates,
    read_column,
    read_usage,
    read_whole_column,
)
from services.core.adapters.sqlite.metrics.time_order import TimeOrderReader
from services.core.adapters.sqlite.metrics.whole_files import FileWriter, read_files
from services.core.adapters.sqlite.place import refuse_network
from services.core.domain.errors import InvalidRequest, NoSpace, NotFound, Quarantined, TooLarge, Unavailable, WeftError
from services.core.ports.metric_store import (
    DEFAULT_BOUNDS,
    Aggregate,
    Batch,
    Column,
    Extent,
    FilePart,
    JobBounds,
    LinePage,
    LineQuery,
    PointQuery,
    SourceId,
    SourceState,
    Stored,
    StoredLine,
    StoredPoint,
)

T = TypeVar("T")
_JOB: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")
_GROUP: Final = 64
"""Appends in one transaction: enough to share the fsyncs, few enough to bound the memory."""
_WRITERS: Final = 3
_READERS: Final = 4
_SEARCHERS: Final = 2
"""Threads for searches: however many wait, other reads do not wait for them."""
_LEAST_FREE: Final = 2**20
_LOADING: Final = ".loading-"
"""Prefix of the names of folders of jobs that are being loaded; they are renamed when they are complete."""
log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Waiting:
    batches: Sequence[Batch]
    offsets: asyncio.Future[list[int]]


class SqliteMetricStore:
    """One process at a time may write below a root: it holds ``<root>/lock``. Others may read."""

    def __init__(
        self,
        root: Path,
        lock: int | None,
        *,
        open_jobs: int,
        search_s: float,
        segment_bytes: int,
        bounds: JobBounds = DEFAULT_BOUNDS,
        on_left_out: Callable[[str, int], None] = lambda _bound, _count: None,
    ) -> None:
        """``lock``: descriptor of the held lock; None to read only."""
        self._on_left_out = on_left_out
        self._root, self._lock, self._search_s, self._segment_bytes = root, lock, search_s, segment_bytes
        self._open = OpenJobs(root, limit=open_jobs, segment_bytes=segment_bytes, bounds=bounds, reading=lock is None)
        self._closed = False
        self._damaged: dict[str, str] = {}
        self._logged: set[tuple[str, str]] = set()
        """(job, bound) that this process has logged."""
        self._waiting: dict[str, list[_Waiting]] = {}
        self._draining: set[asyncio.Task[None]] = set()
        self._writers = ThreadPoolExecutor(_WRITERS, "metrics-write")
        self._readers = ThreadPoolExecutor(_READERS, "metrics-read")
        self._searchers = ThreadPoolExecutor(_SEARCHERS, "metrics-search")

    @classmethod
    async def open(
        cls,
        root: Path,
        *,
        open_jobs: int = 256,
        search_s: float = 10.0,
        segment_bytes: int = SEGMENT_BYTES,
        bounds: JobBounds = DEFAULT_BOUNDS,
        on_left_out: Callable[[str, int], None] = lambda _bound, _count: None,
    ) -> SqliteMetricStore:
        """``open_jobs``: jobs with open files (six descriptors each). ``search_s``: time limit of a query, in seconds.
        ``on_left_out(bound, count)`` is called on a thread for lines and points beyond a bound of their job.

        Raises Unavailable if another process has the root open, InvalidRequest on a network file system.
        """
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        refuse_network(root)
        lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise Unavailable(f"another process has the metric store {root} open") from None
        for left in (*root.glob(f"{_LOADING}*"), *root.glob(f"{GONE}*")):
            shutil.rmtree(left)
        return cls(
            root,
            lock,
            open_jobs=open_jobs,
            search_s=search_s,
            segment_bytes=segment_bytes,
            bounds=bounds,
            on_left_out=on_left_out,
        )

    @classmethod
    def beside(cls, root: Path, *, search_s: float = 60.0) -> SqliteMetricStore:
        """Opens the root for reading only, also if another process has it open; creates and changes nothing."""
        return cls(root, None, open_jobs=1, search_s=search_s, segment_bytes=SEGMENT_BYTES)

    async def append(self, job_id: str, batches: Sequence[Batch]) -> Sequence[int]:
        self._refuse_reading()
        offsets: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(job_id)
        if waiting is not None:  # this job is being written: the append joins the next transaction
            waiting.append(_Waiting(batches, offsets))
        else:
            self._waiting[job_id] = [_Waiting(batches, offsets)]
            task = asyncio.create_task(self._drain(job_id))
            self._draining.add(task)
            task.add_done_callback(self._draining.discard)
        return await offsets

    async def _drain(self, job_id: str) -> None:
        """Writes until no append waits. Every append gets a result or an error."""
        waiting = self._waiting[job_id]
        while waiting:
            group, waiting[:] = waiting[:_GROUP], waiting[_GROUP:]
            writing = self._run(self._writers, self._append, job_id, [append.batches for append in group])
            [written] = await asyncio.gather(writing, return_exceptions=True)
            # If the whole transaction failed, every caller of the group gets the error.
            results = [written] * len(group) if isinstance(written, BaseException) else written
            for append, result in zip(group, results, strict=True):
                if append.offsets.done():  # its caller was cancelled
                    continue
                if isinstance(result, BaseException):
                    append.offsets.set_exception(result)
                else:
                    append.offsets.set_result(result)
        del self._waiting[job_id]

    def _append(self, job_id: str, group: Sequence[Sequence[Batch]]) -> list[list[int] | Exception]:
        """For each append of the group its committed offsets, or the error that concerns it alone."""
        prepared: list[list[Prepared] | Exception] = [_prepared(batches) for batches in group]
        valid = [batch for batches in prepared if not isinstance(batches, Exception) for batch in batches]
        none: tuple[list[int], Counter[str]] = [], Counter()
        offsets, left_out = self._use(job_id, lambda file: file.append(valid), create=True, otherwise=none)
        for bound, count in left_out.items():
            self._on_left_out(bound, count)
            if (job_id, bound) not in self._logged:
                self._logged.add((job_id, bound))
                log.warning("job.bound_reached", job=job_id, bound=bound)
        committed = iter(offsets)
        return [
            batches if isinstance(batches, Exception) else [next(committed) for _ in batches] for batches in prepared
        ]

    async def committed(self, job_id: str, attempt: int, rank: int) -> Sequence[SourceState]:
        def read(file: JobFile) -> list[SourceState]:
            with file.snapshot() as db:
                rows: list[Any] = db.execute(
                    "SELECT attempt, role, rank, run, source, generation, committed, final FROM sources "
                    "WHERE attempt = ? AND rank = ? ORDER BY id",
                    (attempt, rank),
                ).fetchall()
                return [SourceState(SourceId(*key), committed, bool(final)) for *key, committed, final in rows]

        return await self._read(job_id, read, otherwise=[])

    async def lines(self, job_id: str, query: LineQuery, *, limit: int = 1000) -> Sequence[StoredLine]:
        page = await self.line_page(job_id, query, limit=limit)
        if page.stopped_at is not None:
            raise TooLarge("the search takes too long; narrow it by rank, attempt, time or sequence number")
        return page.lines

    async def line_page(self, job_id: str, query: LineQuery, *, limit: int = 1000) -> LinePage:
        compiled(query.search)  # raises for an invalid pattern even if there are no lines
        deadline = time.monotonic() + self._search_s

        def read(file: JobFile) -> LinePage:
            reader = TimeOrderReader if query.by_time else LineReader
            return reader(file, query, deadline=deadline).read(limit)

        pool = self._readers if query.search is None else self._searchers
        return await self._run(pool, lambda: self._use(job_id, read, create=False, otherwise=LinePage([])))

    async def points(self, job_id: str, query: PointQuery, *, limit: int = 10_000) -> Sequence[StoredPoint]:
        return await self._read_points(job_id, lambda reader: reader.points(query, limit), otherwise=[])

    async def series(self, job_id: str, query: PointQuery) -> Sequence[StoredPoint]:
        return await self._read_points(job_id, lambda reader: reader.curves(query), otherwise=[])

    async def latest(self, job_id: str) -> Mapping[str, StoredPoint]:
        return await self._read_points(job_id, PointReader.latest, otherwise={})

    async def aggregates(self, job_id: str, names: Sequence[str] = ()) -> Sequence[Aggregate]:
        return await self._read_rows(job_id, lambda db: read_aggregates(db, names), otherwise=[])

    async def usage(self, job_id: str) -> Sequence[Aggregate]:
        return await self._read_rows(job_id, read_usage, otherwise=[])

    async def whole_columns(
        self, job_id: str, names: Sequence[str], context: Mapping[str, str] | None, *, most: int
    ) -> Mapping[str, Column]:
        text = _context_text(context)
        return await self._read_columns(
            job_id, lambda db: {n: read_whole_column(db, n, text, most=most) for n in names}
        )

    async def columns(
        self, job_id: str, steps: Mapping[str, Sequence[int]], context: Mapping[str, str] | None
    ) -> Mapping[str, Column]:
        text = _context_text(context)
        return await self._read_columns(
            job_id, lambda db: {name: read_column(db, name, text, wanted) for name, wanted in steps.items()}
        )

    async def _read_columns(
        self, job_id: str, read: Callable[[apsw.Connection], Mapping[str, Column | None]]
    ) -> Mapping[str, Column]:
        """Of many jobs in a row: their files are not kept open."""

        def within(file: JobFile) -> Mapping[str, Column]:
            with file.snapshot() as db:
                return {name: column for name, column in read(db).items() if column is not None}

        return await self._run(
            self._readers, lambda: self._use(job_id, within, create=False, otherwise={}, keep_open=False)
        )

    async def _read_rows(self, job_id: str, read: Callable[[apsw.Connection], T], *, otherwise: T) -> T:
        def within(file: JobFile) -> T:
            with file.snapshot() as db:
                return read(db)

        return await self._read(job_id, within, otherwise=otherwise)

    async def counts(self, job_id: str) -> tuple[int, int]:
        def read(file: JobFile) -> tuple[int, int]:
            with file.snapshot() as db:
                lines, points = db.execute("SELECT lines, points FROM state").get
                return lines, points

        return await self._read(job_id, read, otherwise=(0, 0))

    async def left_out(self, job_id: str) -> Mapping[str, int]:
        return await self._read(job_id, JobFile.left_out, otherwise={})

    async def extent(self, job_id: str) -> Extent:
        def read(file: JobFile) -> Extent:
            with file.snapshot() as db:
                lines, points = db.execute("SELECT lines, points FROM state").get
                rows: list[Any] = db.execute(
                    "SELECT attempt, role, rank, run, source, generation, committed, final FROM sources ORDER BY id"
                ).fetchall()
            sources = [SourceState(SourceId(*key), committed, bool(final)) for *key, committed, final in rows]
            return Extent(lines, points, sources)

        return await self._read(job_id, read, otherwise=Extent(0, 0, []))

    async def load(self, job_id: str, sources: Sequence[SourceState], parts: AsyncIterable[Stored]) -> None:
        self._refuse_reading()
        _check_job(job_id)
        loading = self._root / f"{_LOADING}{job_id}"

        def begin() -> JobFile:
            shutil.rmtree(loading, ignore_errors=True)
            made = JobFile(loading, segment_bytes=self._segment_bytes)
            made.begin(sources)
            return made

        try:
            file = await self._run(self._writers, begin)
            try:
                async for part in parts:
                    await self._run(self._writers, file.load, part)
            finally:
                await self._run(self._writers, file.close)
            await self._run(self._writers, self._open.replace, job_id, loading)
        except (OSError, apsw.Error) as error:
            raise translated(error) from error
        finally:
            await self._run(self._writers, lambda: shutil.rmtree(loading, ignore_errors=True))
        self._damaged.pop(job_id, None)

    async def delete(self, job_id: str) -> None:
        self._refuse_reading()

        def forget() -> None:
            _check_job(job_id)
            try:
                self._open.forget(job_id)
            except OSError as error:
                raise translated(error) from error
            self._damaged.pop(job_id, None)

        await self._run(self._writers, forget)

    async def job_ids(self) -> Sequence[str]:
        def names() -> list[str]:
            with os.scandir(self._root) as entries:
                return [entry.name for entry in entries if _JOB.fullmatch(entry.name) and entry.is_dir()]

        return await self._run(self._readers, names)

    async def files(self, job_id: str) -> AsyncGenerator[FilePart]:
        _check_job(job_id)
        parts = read_files(self._root / job_id)

        def following() -> FilePart | None:
            return next(parts, None)

        try:
            part = await self._run(self._readers, following)
            if part is None:
                raise NotFound(f"nothing is stored of job {job_id}")
            while part is not None:
                yield part
                part = await self._run(self._readers, following)
        except OSError as error:
            raise translated(error) from error
        finally:
            parts.close()

    async def load_files(self, job_id: str, parts: AsyncIterable[FilePart]) -> None:
        self._refuse_reading()
        _check_job(job_id)
        loading = self._root / f"{_LOADING}{job_id}"

        def begin() -> FileWriter:
            shutil.rmtree(loading, ignore_errors=True)
            return FileWriter(loading)

        try:
            files = await self._run(self._writers, begin)
            try:
                async for part in parts:
                    await self._run(self._writers, files.write, part)
                await self._run(self._writers, files.finish)
            finally:
                files.close()
            await self._run(self._writers, self._open.replace, job_id, loading)
        except OSError as error:
            raise translated(error) from error
        finally:
            await self._run(self._writers, lambda: shutil.rmtree(loading, ignore_errors=True))
        self._damaged.pop(job_id, None)

    async def release(self, job_id: str) -> None:
        self._refuse_reading()

        def remove() -> None:
            _check_job(job_id)
            try:
                self._open.remove(job_id)
            except OSError as error:
                raise translated(error) from error
            self._damaged.pop(job_id, None)

        await self._run(self._writers, remove)

    def damaged(self) -> Mapping[str, str]:
        return {job_id: f"{message}; its folder is {self._root / job_id}" for job_id, message in self._damaged.items()}

    async def recheck(self, job_id: str) -> None:
        def check() -> None:
            self._use_anyway(job_id, JobFile.check, create=False, otherwise=None)
            self._damaged.pop(job_id, None)

        with contextlib.suppress(WeftError):  # still damaged
            await self._run(self._readers, check)

    async def ping(self) -> None:
        """Raises NoSpace if the disk is full, Unavailable if the folder cannot be written."""

        def check() -> None:
            try:
                disk = os.statvfs(self._root)
            except OSError as error:
                raise translated(error) from error
            if not os.access(self._root, os.W_OK):
                raise Unavailable(f"{self._root} cannot be written")
            if disk.f_bavail * disk.f_frsize < _LEAST_FREE:
                raise NoSpace(f"the disk of {self._root} is full; make room")

        await self._run(self._readers, check)

    async def close(self) -> None:
        """Writes all waiting appends, and closes the files."""
        await asyncio.gather(*self._draining)
        await asyncio.to_thread(self._writers.shutdown)
        await asyncio.to_thread(self._readers.shutdown)
        await asyncio.to_thread(self._searchers.shutdown)
        await asyncio.to_thread(self._open.close)
        if self._lock is not None and not self._closed:
            os.close(self._lock)
        self._closed = True

    async def _read_points(self, job_id: str, read: Callable[[PointReader], T], *, otherwise: T) -> T:
        def locked(file: JobFile) -> T:
            with file.snapshot() as db:
                return read(PointReader(db))

        return await self._read(job_id, locked, otherwise=otherwise)

    async def _read(self, job_id: str, read: Callable[[JobFile], T], *, otherwise: T) -> T:
        return await self._run(self._readers, lambda: self._use(job_id, read, create=False, otherwise=otherwise))

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[..., T], *args: object) -> T:
        if self._closed:
            raise Unavailable("the metric store is closed")
        return await asyncio.get_running_loop().run_in_executor(pool, work, *args)

    def _refuse_reading(self) -> None:
        if self._lock is None:
            raise Unavailable("the metric store is opened for reading only")

    def _use(
        self, job_id: str, operation: Callable[[JobFile], T], *, create: bool, otherwise: T, keep_open: bool = True
    ) -> T:
        """Runs on a thread. ``otherwise``: the result if nothing of the job was ever stored."""
        _check_job(job_id)
        if job_id in self._damaged:
            raise Quarantined(self._damaged[job_id])
        return self._use_anyway(job_id, operation, create=create, otherwise=otherwise, keep_open=keep_open)

    def _use_anyway(
        self, job_id: str, operation: Callable[[JobFile], T], *, create: bool, otherwise: T, keep_open: bool = True
    ) -> T:
        jobs = self._open
        try:
            with jobs.borrow(job_id, create=create) if keep_open else jobs.borrow_to_read(job_id) as file:
                return otherwise if file is None else operation(file)
        except (Damaged, OSError, apsw.Error) as error:
            if not (self._root / job_id).exists():  # deleted while this ran
                if create:
                    raise NotFound(f"job {job_id} was deleted") from error
                return otherwise
            raise self._failed(job_id, error) from error

    def _failed(self, job_id: str, error: Exception) -> Exception:
        """The error for the caller. A damaged job stays in quarantine until ``recheck`` finds it repaired."""
        if not isinstance(error, (Damaged, apsw.CorruptError, apsw.NotADBError, apsw.SQLError)):
            log.warning("metrics.store_failed", job=job_id, why=str(error))
            return translated(error)
        message = f"the metrics of job {job_id} are damaged ({error}); an operator can repair them"
        log.warning("metrics.damaged", job=job_id, folder=str(self._root / job_id), why=str(error))
        self._damaged[job_id] = message
        return Quarantined(message)


def _check_job(job_id: str) -> None:
    """The id is the name of a folder. Raises InvalidRequest for any other text."""
    if _JOB.fullmatch(job_id) is None:
        raise InvalidRequest(f"{job_id[:80]!r} is not the id of a job")


def _prepared(batches: Sequence[Batch]) -> list[Prepared] | Exception:
    try:
        return [prepare(batch) for batch in batches]
    except InvalidRequest as error:
        return error


def _context_text(context: Mapping[str, str] | None) -> str | None:
    """As the table of series has it; None stays None."""
    return None if context is None else context_text(context)
