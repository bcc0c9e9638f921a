"""One SQLite file with a writing and a reading thread, so that the event loop never waits for a disk.

Durable: WAL with ``synchronous=FULL``; a write returns after its COMMIT was fsynced. Writes that wait together share
one transaction and so one fsync (group commit). Each has a savepoint of its own, so that a refused write does not
affect the others. If the whole transaction fails, nothing of it is stored, and each of its writes is tried alone, so
that every caller gets the result of its own write.

Linearizable: a write begins with BEGIN IMMEDIATE, and returns after it is visible; a read sees everything that was
committed when it began. Several processes may have the file open; they wait for each other in SQLite's busy handler.

apsw includes its own SQLite; those of many systems have the WAL-reset corruption bug.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw
import structlog

from services.core.adapters.sqlite.kept_reads import KeptReads
from services.core.adapters.sqlite.place import MOUNTS, refuse_network
from services.core.domain.errors import (
    Conflict,
    Duplicate,
    Internal,
    InvalidRequest,
    NoSpace,
    Unavailable,
    WeftError,
)
from services.core.runtime.outcomes import Outcome, outcome_of
from services.core.runtime.undo import undo_on_failure

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
Operation = Callable[[apsw.Connection], T]
log = structlog.get_logger()

_BUSY_MS: Final = 5_000
"""Longer than any transaction of ours, shorter than the timeouts of callers."""
_LOCKED_S: Final = 0.001
"""How often a locked file is tried again. SQLite's own handler waits for up to 0.1 s, in which other processes take the
lock again and again."""
_GROUP: Final = 256
"""Writes in one transaction: enough to share the fsync, few enough for other processes to get the lock."""
_WAL_KEPT: Final = 64 * 2**20
"""Bytes to which a large write-ahead log is truncated."""
_OLDEST_SQLITE: Final = 3_051_003
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_SUCCEEDED: Final[Outcome[Any]] = Outcome(None)
_AWAY: Final = (
    apsw.BusyError,
    apsw.CantOpenError,
    apsw.IOError,
    apsw.InterruptError,
    apsw.LockedError,
    apsw.NoMemError,
    apsw.PermissionsError,
    apsw.ProtocolError,
    apsw.ReadOnlyError,
)


@dataclass(frozen=True, slots=True)
class AddedColumn:
    """A column that files of older versions lack. It is added without writing a row."""

    table: str
    name: str
    definition: str


@dataclass(slots=True, eq=False)
class _Call:
    operation: Operation[Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    outcome: Outcome[Any] = _SUCCEEDED


@dataclass(slots=True, eq=False)
class _Worker:
    """A thread with a connection of its own, which runs calls in order."""

    name: str
    connect: Callable[[], apsw.Connection]
    run_calls: Callable[[apsw.Connection, Sequence[_Call]], None]
    group: int
    waiting: queue.SimpleQueue[_Call | None] = field(default_factory=queue.SimpleQueue)
    thread: threading.Thread | None = None
    closed: bool = False

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()
        opening = _Call(lambda _: None, loop, started)
        self.thread = threading.Thread(target=self._run, args=(opening,), name=self.name, daemon=True)
        self.thread.start()
        await started

    async def call(self, operation: Operation[T]) -> T:
        if self.closed:
            raise Unavailable(f"{self.name} is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self.waiting.put(_Call(operation, loop, future))
        return await future

    async def close(self) -> None:
        """Runs the waiting calls, ends the thread and returns."""
        if self.closed or self.thread is None:
            return
        self.closed = True
        self.waiting.put(None)
        await asyncio.to_thread(self.thread.join)

    def _run(self, opening: _Call) -> None:
        connected = outcome_of(self.connect)
        if connected.error is not None:
            opening.outcome = Outcome(None, translated(connected.error))
            _settle([opening])
            return
        connection = connected.result()
        _settle([opening])
        while calls := self._next():
            self.run_calls(connection, calls)
            _settle(calls)
        connection.close()

    def _next(self) -> list[_Call]:
        """The waiting calls, up to the size of a group; empty after ``close``."""
        calls: list[_Call] = []
        entry = self.waiting.get()
        while entry is not None:
            calls.append(entry)
            if len(calls) == self.group or self.waiting.empty():
                return calls
            entry = self.waiting.get()  # does not block: only this thread takes from the queue
        if calls:
            self.waiting.put(None)  # end after these calls
        return calls


class Database:
    """The file and its two threads. ``write`` and ``read`` raise WeftErrors, and what the operation itself raises."""

    def __init__(self, path: Path, writer: _Worker, reader: _Worker) -> None:
        self.path = path
        self._writer = writer
        self._reader = reader
        self._kept: KeptReads | None = None

    @classmethod
    async def open(
        cls, path: Path, *, title: str, tables: Sequence[str | AddedColumn], version: int = 1, mounts: Path = MOUNTS
    ) -> Database:
        """Opens or creates the file. ``title`` names it in messages; ``tables`` are the steps that create its tables.

        The steps run in one transaction at each start, in order, so each has no effect where it was done before.

        Raises InvalidRequest on a network file system, Conflict if a newer Weft (a higher ``version``) wrote the file,
        Internal if it is no SQLite file, Unavailable if it cannot be opened.
        """

        def connect_first() -> apsw.Connection:
            _create_file(path, mounts)
            connection = _connect(path)
            with undo_on_failure(connection.close):
                _create_tables(connection, title, tables, version)
            return connection

        def connect_reader() -> apsw.Connection:
            connection = _connect(path)
            connection.pragma("query_only", True)
            return connection

        if apsw.SQLITE_VERSION_NUMBER < _OLDEST_SQLITE:
            raise Internal(f"SQLite {apsw.sqlite_lib_version()} can corrupt its log; install a newer apsw")
        writer = _Worker(f"{title} (writer)", connect_first, _run_writes, _GROUP)
        reader = _Worker(f"{title} (reader)", connect_reader, _run_reads, 1)
        database = cls(path, writer, reader)
        async with contextlib.AsyncExitStack() as on_failure:
            on_failure.push_async_callback(database.close)
            await writer.start()
            await reader.start()
            on_failure.pop_all()
        with contextlib.suppress(apsw.Error):  # then each read is made
            database._kept = KeptReads(path)
        return database

    async def write(self, operation: Operation[T]) -> T:
        """Runs the operation in a transaction; durable when this returns.

        The operation may run more than once, each time on a database without its earlier effects.
        """
        return await self._writer.call(operation)

    async def read(self, operation: Operation[T]) -> T:
        """Runs the operation on a snapshot of everything committed until now."""
        return await self._reader.call(operation)

    async def read_unless_unchanged(
        self, key: Hashable, operation: Operation[T], *, is_small: Callable[[T], bool] = lambda _: True
    ) -> T:
        """As ``read``, or the same object as the last time if nothing was committed to the file since.

        ``key``: equal for operations that are the same. The result must not be changed by its users; it is kept in
        memory if ``is_small`` allows it.
        """
        kept = self._kept
        if kept is None:
            return await self.read(operation)
        version = kept.check()
        if (last := kept.find(key)) is not None:
            result: T = last.result
            return result
        result = await self.read(operation)
        if is_small(result):
            kept.keep(key, result, version)
        return result

    async def ping(self) -> None:
        """Raises Unavailable if the file is missing or cannot be read."""
        if not self.path.exists():
            raise Unavailable(f"{self.path} is missing; restore it and start the platform again")
        await self.read(lambda connection: connection.execute("SELECT count(*) FROM weft_schema").fetchall())

    async def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
        # The writer last: the last connection that closes writes the log into the file.
        await self._reader.close()
        await self._writer.close()


def translated(error: E, system_errno: int = 0) -> E | WeftError:
    """The WeftError for an error of SQLite or the system; returns any other error unchanged.

    Its message is shown to users, who learn no path of the platform. The log has the path.
    """
    out: WeftError
    if isinstance(error, OSError):
        system_errno = error.errno or 0
    if isinstance(error, apsw.FullError) or (isinstance(error, (apsw.IOError, OSError)) and system_errno in _FULL):
        out = NoSpace("the disk is full; make room and try again")
    elif isinstance(error, apsw.ConstraintError):
        out = Duplicate(f"this exists already ({error})")
    elif isinstance(error, _AWAY):
        out = Unavailable(f"the database cannot be used now ({error}); try again", retry_after_s=1)
    elif isinstance(error, (apsw.NotADBError, apsw.CorruptError)):
        out = Internal(f"the file is not a sound SQLite database ({error}); restore it from a copy")
    elif isinstance(error, UnicodeEncodeError):
        out = InvalidRequest("text that is not valid Unicode cannot be stored")
    elif isinstance(error, apsw.Error):
        out = Internal(f"SQLite: {error}")
    elif isinstance(error, OSError):
        log.warning("database.file_failed", path=str(error.filename or ""), why=error.strerror)
        out = Unavailable(f"the database cannot be used now ({error.strerror}); try again", retry_after_s=1)
    else:
        return error
    out.__cause__ = error
    return out


def _settle(calls: Sequence[_Call]) -> None:
    """Delivers the results on the callers' own loops, with one wake-up per loop."""
    for loop in {call.loop for call in calls}:
        try:
            loop.call_soon_threadsafe(_deliver, [call for call in calls if call.loop is loop])
        except RuntimeError:
            continue  # the loop was closed: its callers are gone


def _deliver(calls: Sequence[_Call]) -> None:
    for call in calls:
        call.outcome.settle(call.future)


def _run_writes(connection: apsw.Connection, calls: Sequence[_Call]) -> None:
    if len(calls) > 1 and _run_together(connection, calls):
        return
    for call in calls:
        _run_alone(connection, call, "BEGIN IMMEDIATE")


def _run_reads(connection: apsw.Connection, calls: Sequence[_Call]) -> None:
    for call in calls:
        _run_alone(connection, call, "BEGIN")


def _run_alone(connection: apsw.Connection, call: _Call, begin: str) -> None:
    def transaction() -> Any:
        connection.execute(begin)
        result = call.operation(connection)
        connection.execute("COMMIT")
        return result

    call.outcome = outcome_of(transaction)
    if call.outcome.error is not None:
        call.outcome = Outcome(None, translated(call.outcome.error, connection.system_errno))
        _roll_back(connection)


def _run_together(connection: apsw.Connection, calls: Sequence[_Call]) -> bool:
    """Runs all calls in one transaction. False if it failed; then nothing of them is in the database."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except apsw.BusyError as error:
        # Alone, each would wait for the same lock, one after another.
        for call in calls:
            call.outcome = Outcome(None, translated(error))
        return True
    except apsw.Error:
        return False
    try:
        for call in calls:
            connection.execute("SAVEPOINT call")
            call.outcome = outcome_of(partial(call.operation, connection))
            failed = call.outcome.error
            if isinstance(failed, apsw.Error) and not isinstance(failed, apsw.ConstraintError):
                raise failed  # the whole transaction fails
            if failed is not None:
                call.outcome = Outcome(None, translated(failed))
                connection.execute("ROLLBACK TO call")
            connection.execute("RELEASE call")
        connection.execute("COMMIT")
    except apsw.Error:
        _roll_back(connection)
        return False
    return True


def _roll_back(connection: apsw.Connection) -> None:
    """Rolls back, unless SQLite has done so itself, as after a full disk."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _create_file(path: Path, mounts: Path) -> None:
    """Creates the file, readable by its owner only: it contains digests of keys. Side files get the same mode."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    refuse_network(path.parent, mounts)
    # Only SQLite may open the file: closing another descriptor of it drops SQLite's locks.
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _connect(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    with undo_on_failure(connection.close):
        connection.set_busy_handler(_wait_for_lock())
        _retry_busy(lambda: connection.pragma("journal_mode", "wal"))
        connection.pragma("synchronous", "FULL")
        connection.pragma("journal_size_limit", _WAL_KEPT)
    return connection


def _wait_for_lock() -> Callable[[int], bool]:
    """A busy handler of a connection, which gives up after ``_BUSY_MS``."""
    give_up = 0.0

    def wait(tries: int) -> bool:
        nonlocal give_up
        now = time.monotonic()
        if not tries:
            give_up = now + _BUSY_MS / 1000
        time.sleep(_LOCKED_S)
        return now < give_up

    return wait


def _retry_busy(change: Callable[[], object]) -> None:
    """Retries while the file is busy: SQLite has no busy handler for the switch of a new file to WAL."""
    give_up = time.monotonic() + _BUSY_MS / 1000
    while True:
        try:
            change()
        except apsw.BusyError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.01)
        else:
            return


def _create_tables(connection: apsw.Connection, title: str, tables: Sequence[str | AddedColumn], version: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    with undo_on_failure(lambda: _roll_back(connection)):
        connection.execute("CREATE TABLE IF NOT EXISTS weft_schema(title TEXT PRIMARY KEY, version INTEGER NOT NULL)")
        row = connection.execute("SELECT version FROM weft_schema WHERE title = ?", (title,)).fetchone()
        if row is not None and int(row[0]) > version:
            raise Conflict(
                f"this {title} was written by a newer Weft (its schema is {row[0]}, this one reads {version}); "
                "upgrade Weft, or use another WEFT_HOME"
            )
        for step in tables:
            if isinstance(step, str):
                connection.execute(step)
            elif not _has_column(connection, step):
                connection.execute(f"ALTER TABLE {step.table} ADD COLUMN {step.name} {step.definition}")
        connection.execute("INSERT OR IGNORE INTO weft_schema VALUES (?, ?)", (title, version))
        connection.execute("COMMIT")


def _has_column(connection: apsw.Connection, column: AddedColumn) -> bool:
    # table_info leaves out columns that are computed.
    names = connection.execute("SELECT name FROM pragma_table_xinfo(?)", (column.table,))
    return column.name in {name for (name,) in names}
