"""One job's lines and points: a folder with an SQLite file, which is the truth, and the log segments it points into.

What is kept true: the committed offset of a source, the lines and points up to it, and their sequence numbers change in
one transaction, after the lines' bytes were fsynced. So a sender may repeat itself as often as it likes.

After any error memory and disk may differ: the object is thrown away and opened again from what was committed. One
writer and one reader may use it at a time, each under its lock; in WAL mode they do not wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw

from services.core.adapters.sqlite.metrics.ledger import Change, Ledger, NewBlock, Prepared, Series, Source
from services.core.adapters.sqlite.metrics.segments import (
    Damaged,
    SegmentReader,
    SegmentWriter,
    decode,
    segment_path,
    sync_folder,
)
from services.core.domain.errors import Conflict
from services.core.ports.metric_store import SourceId, SourceState, Stored

SCHEMA: Final = 1
INDEX: Final = "index.sqlite"
_BUSY_MS: Final = 5_000
_CACHE_KIB: Final = 1_024
"""Page cache of each connection: hundreds of jobs may be open at once."""

_TABLES: Final = """
CREATE TABLE state (id INTEGER PRIMARY KEY, lines INTEGER NOT NULL, points INTEGER NOT NULL,
    segment INTEGER NOT NULL, length INTEGER NOT NULL);
INSERT INTO state VALUES (1, 0, 0, 0, 0);
CREATE TABLE sources (id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, role TEXT NOT NULL, rank INTEGER NOT NULL,
    run INTEGER NOT NULL, source TEXT NOT NULL, generation INTEGER NOT NULL, committed INTEGER NOT NULL,
    final INTEGER NOT NULL, UNIQUE (attempt, role, rank, run, source, generation));
CREATE TABLE blocks (last INTEGER PRIMARY KEY, first INTEGER NOT NULL, source INTEGER NOT NULL,
    segment INTEGER NOT NULL, position INTEGER NOT NULL, length INTEGER NOT NULL, crc INTEGER NOT NULL,
    min_time INTEGER NOT NULL, max_time INTEGER NOT NULL);
CREATE TABLE series (id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, rank INTEGER NOT NULL, name TEXT NOT NULL,
    context TEXT NOT NULL, last_seq INTEGER NOT NULL, UNIQUE (attempt, rank, name, context));
CREATE TABLE points (seq INTEGER PRIMARY KEY, series INTEGER NOT NULL, source INTEGER NOT NULL,
    offset INTEGER NOT NULL, time_ms INTEGER NOT NULL, step INTEGER, value REAL);
CREATE INDEX points_by_step ON points (series, step);
"""
# points.value: NULL is NaN, for which SQLite has no other word.

_PUT_SOURCE: Final = (
    "INSERT INTO sources VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET committed = excluded.committed, final = excluded.final"
)
_PUT_SERIES: Final = (
    "INSERT INTO series VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET last_seq = excluded.last_seq"
)
_PUT_BLOCK: Final = "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PUT_POINT: Final = "INSERT INTO points VALUES (?, ?, ?, ?, ?, ?, ?)"
_PUT_STATE: Final = "UPDATE state SET lines = ?, points = ?, segment = ?, length = ?"


class JobFile:
    """Opened, or made, in its constructor."""

    def __init__(self, folder: Path, *, segment_bytes: int, reading: bool = False) -> None:
        """Damaged or apsw's CorruptError where it cannot be read; Conflict where a newer Weft wrote it.

        ``reading``: beside the process that writes; nothing is made or changed.
        """
        self.folder = folder
        self.writing, self._reading = threading.Lock(), threading.Lock()
        self._segment_bytes = segment_bytes
        self._segments: SegmentWriter | None = None
        self._reader: apsw.Connection | None = None
        self.empty = False
        """It was only just begun: where it is opened for reading there are not even tables."""
        self._flags = apsw.SQLITE_OPEN_READWRITE | (0 if reading else apsw.SQLITE_OPEN_CREATE)
        if not reading and not folder.exists():
            folder.mkdir(mode=0o700)
            sync_folder(folder.parent)
        self._writer = _connect(folder, self._flags)
        try:
            self.empty = not self._refuse_newer()
            if reading:
                return
            self._writer.transaction_mode = "IMMEDIATE"
            self._lay_out()
            self._ledger = self._load()
        except BaseException:
            self.close()
            raise

    def _refuse_newer(self) -> int:
        """The schema of the file; 0: it is empty."""
        found = int(self._writer.pragma("user_version"))
        if found > SCHEMA:
            raise Conflict(f"{self.folder.name}'s metrics were written by a newer Weft (schema {found}); upgrade Weft")
        return found

    def _lay_out(self) -> None:
        if not self.empty:
            return
        if segment_path(self.folder, 1).exists():
            raise Damaged(f"{INDEX} is empty, but there are log segments")
        with self._writer:
            self._writer.execute(_TABLES)
            self._writer.pragma("user_version", SCHEMA)
        sync_folder(self.folder)

    def _load(self) -> Ledger:
        state = self._writer.execute("SELECT lines, points, segment, length FROM state").get
        if state is None:
            raise Damaged(f"{INDEX} has lost its state")
        lines, points, self._segment, self._length = state
        sources: list[Any] = self._writer.execute("SELECT * FROM sources").fetchall()
        series: list[Any] = self._writer.execute("SELECT * FROM series").fetchall()
        known = [Source(row_id, SourceId(*key), committed, bool(final)) for row_id, *key, committed, final in sources]
        return Ledger(
            lines,
            points,
            {one.source: one for one in known},
            {(one.attempt, one.rank, one.name, one.context): one for one in (Series(*row) for row in series)},
        )

    @contextmanager
    def snapshot(self) -> Generator[apsw.Connection]:
        """For queries, which all see the same state. One reader at a time."""
        with self._reading:
            if self._reader is None:
                self._reader = _connect(self.folder, self._flags)
                self._reader.pragma("query_only", True)
            with self._reader:
                yield self._reader

    def check(self) -> None:
        """Reads everything. Damaged, or an error of apsw's, where not all is as it was written."""
        segments = SegmentReader(self.folder)
        try:
            with self.snapshot() as db:
                said = str(db.pragma("quick_check"))
                if said != "ok":
                    raise Damaged(said)
                rows: Any = db.execute("SELECT segment, position, length, crc FROM blocks ORDER BY last")
                for segment, position, length, crc in rows:
                    decode(segments.read(segment, position, length), crc)
        finally:
            segments.close()

    def append(self, batches: Sequence[Prepared]) -> list[int]:
        """Stores, durably, those that begin where their source stands; the committed offsets afterwards, in order."""
        with self.writing:
            change = Change()
            answers = [self._ledger.take(one, change) for one in batches]
            if change.sources:
                self._commit(change)
            return answers

    def begin(self, states: Sequence[SourceState]) -> None:
        """The sources of a job that is loaded."""
        with self.writing:
            change = Change()
            self._ledger.begin(states, change)
            self._commit(change)

    def load(self, part: Stored) -> None:
        """Lines or points with their sequence numbers."""
        with self.writing:
            change = Change()
            self._ledger.load(part, change)
            self._commit(change)

    def _commit(self, change: Change) -> None:
        blocks = self._write_blocks(change.blocks)
        with self._writer as db:
            db.executemany(_PUT_SOURCE, [one.row() for one in change.sources.values()])
            db.executemany(_PUT_BLOCK, blocks)
            db.executemany(_PUT_SERIES, [one.row() for one in change.series.values()])
            db.executemany(_PUT_POINT, change.points)
            db.execute(_PUT_STATE, (self._ledger.lines, self._ledger.points, self._segment, self._length))

    def _write_blocks(self, blocks: Sequence[NewBlock]) -> list[tuple[Any, ...]]:
        """The rows of blocks that are on the disk."""
        if not blocks:
            return []
        if self._segments is None:
            self._segments = SegmentWriter(
                self.folder, number=self._segment, length=self._length, segment_bytes=self._segment_bytes
            )
        positions = self._segments.append([one.prepared.block for one in blocks])
        self._segment, self._length = self._segments.number, self._segments.length
        return [one.row(self._segment, position) for one, position in zip(blocks, positions, strict=True)]

    def close(self) -> None:
        """Loses nothing; what was not committed is cut off by the next opening."""
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        if self._segments is not None:
            self._segments.close()


def _connect(folder: Path, flags: int) -> apsw.Connection:
    connection = apsw.Connection(str(folder / INDEX), flags=flags)
    try:
        connection.set_busy_timeout(_BUSY_MS)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "FULL")
        connection.pragma("cache_size", -_CACHE_KIB)
    except BaseException:
        connection.close()
        raise
    return connection
