"""One job's lines and points: a folder with an SQLite file, which is authoritative, and the log segments it refers to.

The committed offset of a source, the lines and points up to it, and their sequence numbers change in one transaction,
after the lines' bytes were fsynced. So a sender may repeat a batch any number of times.

After an error, memory and disk may differ: the object is dropped and opened again from the committed state. One writer
and one reader may use it at a time, each under its lock; in WAL mode they do not wait for each other.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw

from services.core.adapters.sqlite.metrics.ledger import Change, Ledger, NewBlock, Prepared, Series, Source
from services.core.adapters.sqlite.metrics.pyramid import TABLES as CHUNKS
from services.core.adapters.sqlite.metrics.pyramid import ChunkWriter
from services.core.adapters.sqlite.metrics.segments import (
    Damaged,
    SegmentReader,
    SegmentWriter,
    decode,
    segment_path,
)
from services.core.adapters.sqlite.metrics.tallies import PUT as PUT_TALLY
from services.core.adapters.sqlite.metrics.tallies import TABLE as TALLIES
from services.core.adapters.sqlite.metrics.tallies import read_tallies
from services.core.domain.errors import Conflict
from services.core.ports.metric_store import DEFAULT_BOUNDS, JobBounds, SourceId, SourceState, Stored
from services.core.runtime.durable_files import sync_folder
from services.core.runtime.undo import undo_on_failure

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
# points.value: NULL means NaN, which SQLite cannot store.

_PUT_SOURCE: Final = (
    "INSERT INTO sources VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET committed = excluded.committed, final = excluded.final"
)
_PUT_SERIES: Final = (
    "INSERT INTO series VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET last_seq = excluded.last_seq"
)
_PUT_BLOCK: Final = "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PUT_POINT: Final = "INSERT INTO points VALUES (?, ?, ?, ?, ?, ?, ?)"
_LEFT_OUT: Final = "CREATE TABLE IF NOT EXISTS left_out (bound TEXT PRIMARY KEY, entries INTEGER NOT NULL)"
"""Files of an older version have no such table."""
_PUT_LEFT_OUT: Final = "INSERT INTO left_out VALUES (?, ?) ON CONFLICT (bound) DO UPDATE SET entries = excluded.entries"
_PUT_STATE: Final = "UPDATE state SET lines = ?, points = ?, segment = ?, length = ?"


class JobFile:
    """The constructor opens or creates the files."""

    def __init__(
        self, folder: Path, *, segment_bytes: int, reading: bool = False, bounds: JobBounds = DEFAULT_BOUNDS
    ) -> None:
        """``reading``: reads beside the writing process; creates and changes nothing.

        Raises Damaged or apsw's CorruptError if the files cannot be read, Conflict if a newer Weft wrote them.
        """
        self.folder = folder
        self.writing, self._reading = threading.Lock(), threading.Lock()
        self._segment_bytes, self._bounds = segment_bytes, bounds
        self._segments: SegmentWriter | None = None
        self._reader: apsw.Connection | None = None
        self._read_only = reading
        self.empty = False
        """True for a new file. Opened for reading, it may have no tables."""
        self._flags = apsw.SQLITE_OPEN_READWRITE | (0 if reading else apsw.SQLITE_OPEN_CREATE)
        if not reading and not folder.exists():
            folder.mkdir(mode=0o700)
            sync_folder(folder.parent)
        self._writer = _connect(folder, self._flags)
        with undo_on_failure(self.close):
            self.empty = not self._refuse_newer()
            if not reading:
                self._writer.transaction_mode = "IMMEDIATE"
                self._create_tables()
                self._writer.execute(_LEFT_OUT)
                self._writer.execute(TALLIES)
                self._writer.execute(CHUNKS)
                self._chunks = ChunkWriter(self._writer)
                self._ledger = self._load()

    def _refuse_newer(self) -> int:
        """The schema of the file; 0 for an empty one. Raises Conflict for a newer schema."""
        schema = int(self._writer.pragma("user_version"))
        if schema > SCHEMA:
            raise Conflict(f"{self.folder.name}'s metrics were written by a newer Weft (schema {schema}); upgrade Weft")
        return schema

    def _create_tables(self) -> None:
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
            raise Damaged(f"{INDEX} has no row of its state")
        lines, points, self._segment, self._length = state
        sources: list[Any] = self._writer.execute("SELECT * FROM sources").fetchall()
        series: list[Any] = self._writer.execute("SELECT * FROM series").fetchall()
        tallies = read_tallies(self._writer)
        known = [Source(row_id, SourceId(*key), committed, bool(final)) for row_id, *key, committed, final in sources]
        return Ledger(
            lines,
            points,
            {source.source: source for source in known},
            {
                (curve.attempt, curve.rank, curve.name, curve.context): curve
                for curve in (
                    Series(row_id, attempt, rank, name, context, last_seq, tallies[row_id])
                    for row_id, attempt, rank, name, context, last_seq in series
                )
            },
            self._bounds,
            # Closed segments may be a little larger.
            max(0, self._segment - 1) * self._segment_bytes + self._length,
            Counter(_left_out(self._writer)),
        )

    @contextmanager
    def snapshot(self) -> Generator[apsw.Connection]:
        """A connection whose queries all see the same state. One reader at a time."""
        with self._reading:
            if self._reader is None:
                # A file that is only read needs no second connection.
                self._reader = self._writer if self._read_only else _connect(self.folder, self._flags)
                self._reader.pragma("query_only", True)
            with self._reader:
                yield self._reader

    def check(self) -> None:
        """Reads everything. Raises Damaged or an error of apsw if anything was damaged or changed."""
        segments = SegmentReader(self.folder)
        try:
            with self.snapshot() as db:
                result = str(db.pragma("quick_check"))
                if result != "ok":
                    raise Damaged(result)
                rows: Any = db.execute("SELECT segment, position, length, crc FROM blocks ORDER BY last")
                for segment, position, length, crc in rows:
                    decode(segments.read(segment, position, length), crc)
        finally:
            segments.close()

    def left_out(self) -> dict[str, int]:
        """Lines and points beyond a bound of the job, by its name."""
        with self.snapshot() as db:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'left_out'").get is None:
                return {}
            return _left_out(db)

    def append(self, batches: Sequence[Prepared]) -> tuple[list[int], Counter[str]]:
        """Stores, durably, batches that begin at their source's committed offset.

        Returns the offsets afterwards, and how many lines and points were left out now, by the name of the bound.
        """
        with self.writing:
            change = Change()
            offsets = [self._ledger.take(batch, change) for batch in batches]
            if change.sources or change.left_out:
                self._commit(change)
            return offsets, change.left_out

    def begin(self, states: Sequence[SourceState]) -> None:
        """Enters the sources of a job that is loaded."""
        with self.writing:
            change = Change()
            self._ledger.begin(states, change)
            self._commit(change)

    def load(self, part: Stored) -> None:
        """Stores lines or points with their sequence numbers."""
        with self.writing:
            change = Change()
            self._ledger.load(part, change)
            self._commit(change)

    def _commit(self, change: Change) -> None:
        blocks = self._write_blocks(change.blocks)
        with self._writer as db:
            db.executemany(_PUT_SOURCE, [source.row() for source in change.sources.values()])
            db.executemany(_PUT_BLOCK, blocks)
            db.executemany(_PUT_SERIES, [series.row() for series in change.series.values()])
            db.executemany(
                PUT_TALLY, [series.tally.row(series.id, series.last_seq) for series in change.series.values()]
            )
            db.executemany(_PUT_POINT, change.points)
            for series in change.series.values():
                self._chunks.extend(series.id, series.tally.count, stepped=series.tally.last_step is not None)
            db.executemany(_PUT_LEFT_OUT, [(bound, self._ledger.left_out[bound]) for bound in change.left_out])
            db.execute(_PUT_STATE, (self._ledger.lines, self._ledger.points, self._segment, self._length))

    def _write_blocks(self, blocks: Sequence[NewBlock]) -> list[tuple[Any, ...]]:
        """Writes the blocks durably; returns their rows."""
        if not blocks:
            return []
        if self._segments is None:
            self._segments = SegmentWriter(
                self.folder, number=self._segment, length=self._length, segment_bytes=self._segment_bytes
            )
        positions = self._segments.append([block.prepared.block for block in blocks])
        self._segment, self._length = self._segments.number, self._segments.length
        return [block.row(self._segment, position) for block, position in zip(blocks, positions, strict=True)]

    def close(self) -> None:
        """Closes the files. Bytes that were not committed are removed when they are opened again."""
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        if self._segments is not None:
            self._segments.close()


def _left_out(connection: apsw.Connection) -> dict[str, int]:
    rows: list[Any] = connection.execute("SELECT bound, entries FROM left_out").fetchall()
    return dict(rows)


def _connect(folder: Path, flags: int) -> apsw.Connection:
    connection = apsw.Connection(str(folder / INDEX), flags=flags)
    with undo_on_failure(connection.close):
        connection.set_busy_timeout(_BUSY_MS)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "FULL")
        connection.pragma("cache_size", -_CACHE_KIB)
    return connection
