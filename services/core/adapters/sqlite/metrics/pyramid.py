"""Smallest and largest values of runs of points, kept while points are stored: long curves are read quickly.

A chunk of level 0 covers ``SPAN`` points of a series, one of the next level ``FAN`` chunks of the level below. A curve
of any length is then thinned from a few thousand rows. The result is exact: each part of the curve has its smallest and
its largest value, and its first NaN.

Chunks are valid for series whose points come in order of their steps, each once (or that have no steps at all). Writer
and reader check this: the points after the last chunk and those in chunks are together as many as the series has. A
series in which a step was reported again is marked, and read from its points.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import apsw

from services.core.ports.metric_store import PointQuery

SPAN: Final = 64
"""Points of a chunk of level 0."""
FAN: Final = 16
"""Chunks that one of the next level covers."""
_MOST: Final = 1024 * SPAN
"""Points that one transaction adds to the chunks of a series, e.g. of a file that was written without chunks."""
TABLES: Final = """
CREATE TABLE IF NOT EXISTS chunks (series INTEGER NOT NULL, level INTEGER NOT NULL, number INTEGER NOT NULL,
    first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL, first_step INTEGER, last_step INTEGER,
    min_time INTEGER NOT NULL, max_time INTEGER NOT NULL,
    low REAL, low_seq INTEGER, high REAL, high_seq INTEGER, nan_seq INTEGER,
    PRIMARY KEY (series, level, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS disordered (series INTEGER PRIMARY KEY);
"""
"""``low``, ``high``: NULL if all values are NaN. ``nan_seq``: of the first NaN."""
_CHUNK: Final = "first_seq, last_seq, first_step, last_step, min_time, max_time, low, low_seq, high, high_seq, nan_seq"
# ruff: noqa: S608 - the parts of these statements are constants; values from outside are bound
_PUT: Final = f"INSERT INTO chunks (series, level, number, {_CHUNK}) VALUES ({', '.join('?' * 14)})"
_ONE: Final = f"SELECT {_CHUNK} FROM chunks WHERE series = ? AND level = ? AND number = ?"
_GROUP: Final = f"SELECT {_CHUNK} FROM chunks WHERE series = ? AND level = ? AND number >= ? AND number < ?"
_COUNT: Final = "SELECT max(number) + 1 FROM chunks WHERE series = ? AND level = 0"
_POINT: Final = "SELECT seq, step, time_ms, value FROM points WHERE series = :series"
_WITH_STEPS: Final = f"{_POINT} AND step > :step ORDER BY step, seq LIMIT :most"
_WITHOUT_STEPS: Final = f"{_POINT} AND step IS NULL AND seq > :seq ORDER BY seq LIMIT :most"
_BEFORE_ALL: Final = -(2**63)
_TALLY: Final = """
    SELECT t.count, t.last_step IS NOT NULL FROM series s JOIN tallies t ON t.series = s.id AND t.seq = s.last_seq
    WHERE s.id = ? AND NOT EXISTS (SELECT 1 FROM disordered d WHERE d.series = s.id)"""
_STRAYS: Final = """
    SELECT 1 FROM chunks WHERE series = :series AND level = 0 AND (
        (number >= :a AND number < :b AND (min_time < :since OR max_time > :until))
        OR (number < :a - 1 AND max_time >= :since) OR (number > :b AND min_time <= :until)) LIMIT 1"""
_KEPT: Final = """
    WITH chosen AS MATERIALIZED (
        SELECT (number * :span - :a) * :stretches / (:b - :a) AS stretch, low, low_seq, high, high_seq, nan_seq
        FROM chunks WHERE series = :series AND level = :level AND number >= :from AND number < :to
        UNION ALL
        SELECT (number - :a) * :stretches / (:b - :a), low, low_seq, high, high_seq, nan_seq
        FROM chunks WHERE series = :series AND level = 0 AND :level > 0 AND number >= :a AND number < :from * :span
        UNION ALL
        SELECT (number - :a) * :stretches / (:b - :a), low, low_seq, high, high_seq, nan_seq
        FROM chunks WHERE series = :series AND level = 0 AND :level > 0 AND number >= :to * :span AND number < :b)
    SELECT stretch, 0, min(low), low_seq FROM chosen WHERE low IS NOT NULL GROUP BY stretch
    UNION ALL SELECT stretch, 1, max(high), high_seq FROM chosen WHERE high IS NOT NULL GROUP BY stretch
    UNION ALL SELECT stretch, 2, NULL, min(nan_seq) FROM chosen WHERE nan_seq IS NOT NULL GROUP BY stretch"""
"""The chunks at both ends are two queries: with one, and OR, SQLite reads all chunks of level 0."""


@dataclass(frozen=True, slots=True)
class Thinned:
    """How to read a long curve."""

    seqs: Sequence[int] | None
    """The points that are kept; None: too few for chunks, read the points."""
    near: tuple[int, int] | None = None
    """Every point of the window has a step between these, for a window in time."""


class ChunkWriter:
    """Adds the points of one job to chunks. ``db``: the connection that writes."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._covered: dict[int, int | None] = {}
        """Points in chunks, by series; None for a disordered series."""

    def extend(self, series: int, count: int, *, stepped: bool) -> None:
        """Call within the transaction that stored points, with the number of the series' points, and whether the last
        one has a step.
        """
        covered = self._covered[series] if series in self._covered else self._load(series)
        if covered is None or count - covered < SPAN:
            return
        rows = self._after(series, covered, stepped=stepped)
        if not _in_order(rows) or len(rows) != min(count - covered, _MOST):
            self._db.execute("INSERT INTO disordered VALUES (?)", (series,))
            self._covered[series] = None
            return
        first = covered // SPAN
        chunks = [_of_points(rows[at : at + SPAN]) for at in range(0, len(rows) - SPAN + 1, SPAN)]
        self._put(series, 0, first, chunks)
        self._covered[series] = covered + len(chunks) * SPAN
        self._raise(series, 0, first, first + len(chunks))

    def _load(self, series: int) -> int | None:
        disordered = self._db.execute("SELECT 1 FROM disordered WHERE series = ?", (series,)).get
        covered = None if disordered else (self._db.execute(_COUNT, (series,)).get or 0) * SPAN
        self._covered[series] = covered
        return covered

    def _after(self, series: int, covered: int, *, stepped: bool) -> list[Any]:
        last = self._db.execute(_ONE, (series, 0, covered // SPAN - 1)).fetchone() if covered else None
        return _points_after(self._db, series, last, stepped=stepped, most=_MOST)

    def _raise(self, series: int, level: int, first: int, end: int) -> None:
        """Adds the chunks of the levels above that chunks ``first`` to ``end`` complete."""
        above, above_end = first // FAN, end // FAN
        if above_end <= above:
            return
        rows: list[Any] = self._db.execute(_GROUP, (series, level, above * FAN, above_end * FAN)).fetchall()
        self._put(series, level + 1, above, [_of_chunks(rows[at : at + FAN]) for at in range(0, len(rows), FAN)])
        self._raise(series, level + 1, above, above_end)

    def _put(self, series: int, level: int, first: int, chunks: Iterable[tuple[Any, ...]]) -> None:
        self._db.executemany(_PUT, [(series, level, first + at, *chunk) for at, chunk in enumerate(chunks)])


def thin(db: apsw.Connection, series: int, query: PointQuery, stretches: int, window: str) -> Thinned:
    """Which points of a curve to read, so that each of about ``stretches`` parts has its smallest and largest value.

    ``db``: within a snapshot. ``window``: the bounds of the query in SQL, with the names of its fields.
    """
    return _Reader(db, series, query, stretches, window).thinned()


class _Reader:
    def __init__(self, db: apsw.Connection, series: int, query: PointQuery, stretches: int, window: str) -> None:
        self._db, self._series, self._query, self._stretches, self._window = db, series, query, stretches, window

    def thinned(self) -> Thinned:
        if self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'chunks'").get is None:
            return Thinned(None)  # of an older version, opened for reading
        full: int = self._db.execute(_COUNT, (self._series,)).get or 0
        tally: Any = self._db.execute(_TALLY, (self._series,)).fetchone()
        if full < self._stretches or tally is None:
            return Thinned(None)
        count, stepped = tally
        tail = _points_after(self._db, self._series, self._chunk(full - 1), stepped=bool(stepped), most=2 * SPAN)
        if full * SPAN + len(tail) != count or not _in_order(tail):
            return Thinned(None)
        if not stepped and (self._query.from_step is not None or self._query.to_step is not None):
            return Thinned([])  # points without a step are in no window of steps
        a, b = self._inside(full)
        if self._has_strays(a, b, full, tail):
            return Thinned(None)
        if b - a < self._stretches:
            return Thinned(None, self._near(a, b, full) if stepped and self._is_in_time() else None)
        left = self._in_window(a - 1) if a > 0 else []
        right = self._in_window(b) if b < full else [row for row in tail if self._is_in(row)]
        kept = self._kept(a, b)
        for rows, stretch in ((left, 0), (right, self._stretches - 1)):
            _add(kept, rows, stretch)
        first = left[0][0] if left else self._chunk(a)[0]
        last = right[-1][0] if right else self._chunk(b - 1)[1]
        return Thinned(list({first, last, *(seq for _, seq in kept.values())}))

    def _chunk(self, number: int) -> Any:
        return self._db.execute(_ONE, (self._series, 0, number)).fetchone()

    def _inside(self, full: int) -> tuple[int, int]:
        """The chunks a to b (exclusive) are wholly in the window; chunk a - 1 and chunk b may be in part."""
        query, numbers = self._query, range(full)
        first_step, last_step, min_time, max_time = 2, 3, 4, 5

        def count(column: int, bound: int) -> int:
            """How many chunks have a value below the bound; values rise, of times nearly so (see ``_has_strays``)."""
            return bisect_left(numbers, bound, key=lambda number: self._value(number, column))

        a, b = 0, full
        if query.from_step is not None:
            a = max(a, count(first_step, query.from_step))
        if query.since_ms is not None:
            a = max(a, count(min_time, query.since_ms))
        if query.to_step is not None:
            b = min(b, count(last_step, query.to_step + 1))
        if query.until_ms is not None:
            b = min(b, count(max_time, query.until_ms + 1))
        return a, max(a, b)

    def _value(self, number: int, column: int) -> int:
        """Of a series with steps, or a time."""
        return int(self._chunk(number)[column])

    def _is_in_time(self) -> bool:
        return self._query.since_ms is not None or self._query.until_ms is not None

    def _has_strays(self, a: int, b: int, full: int, tail: Sequence[Any]) -> bool:
        """Whether the times of points do not rise: some are in the window, or out of it, where none should be."""
        if not self._is_in_time():
            return False
        since = self._query.since_ms if self._query.since_ms is not None else _BEFORE_ALL
        until = self._query.until_ms if self._query.until_ms is not None else 2**63 - 1
        bounds = {"series": self._series, "a": a, "b": b, "since": since, "until": until}
        if self._db.execute(_STRAYS, bounds).get is not None:
            return True
        return b < full and any(since <= time_ms <= until for _, _, time_ms, _ in tail)

    def _near(self, a: int, b: int, full: int) -> tuple[int, int]:
        return (
            self._value(a - 1, 2) if a > 0 else _BEFORE_ALL,
            self._value(b, 3) if b < full else 2**63 - 1,
        )

    def _kept(self, a: int, b: int) -> dict[tuple[int, int], tuple[float, int]]:
        """(stretch, 0: smallest, 1: largest, 2: NaN) -> (value, seq), of the chunks a to b."""
        level = 0
        while (b - a) // FAN ** (level + 1) >= self._stretches:
            level += 1
        start, end = -(-a // FAN**level), b // FAN**level
        if start >= end:
            level, start, end = 0, a, b
        rows: list[Any] = self._db.execute(
            _KEPT,
            {
                "series": self._series,
                "level": level,
                "span": FAN**level,
                "from": start,
                "to": end,
                "a": a,
                "b": b,
                "stretches": self._stretches,
            },
        ).fetchall()
        return {(stretch, what): (value, seq) for stretch, what, value, seq in rows}

    def _in_window(self, number: int) -> list[Any]:
        """The points of a chunk that are in the window. In the order of their arrival, which is that of their steps."""
        chunk = self._chunk(number)
        stepped = "step >= :first AND step <= :last" if chunk[2] is not None else "step IS NULL"
        rows: list[Any] = self._db.execute(
            f"{_POINT} AND {stepped} AND seq >= :first_seq AND seq <= :last_seq {self._window} ORDER BY seq",
            {
                "series": self._series,
                "first": chunk[2],
                "last": chunk[3],
                "first_seq": chunk[0],
                "last_seq": chunk[1],
                **bounds_of(self._query),
            },
        ).fetchall()
        return rows

    def _is_in(self, row: Any) -> bool:
        query, (_, step, time_ms, _) = self._query, row
        return (
            (query.from_step is None or (step is not None and step >= query.from_step))
            and (query.to_step is None or (step is not None and step <= query.to_step))
            and (query.since_ms is None or time_ms >= query.since_ms)
            and (query.until_ms is None or time_ms <= query.until_ms)
        )


def bounds_of(query: PointQuery) -> dict[str, int]:
    """The bounds of the window that the query has, by their names."""
    names = ("from_step", "to_step", "since_ms", "until_ms")
    return {name: value for name in names if (value := getattr(query, name)) is not None}


def _points_after(db: apsw.Connection, series: int, chunk: Any, *, stepped: bool, most: int) -> list[Any]:
    """Points (seq, step, time, value) after a chunk, or the first ones."""
    _, last_seq, _, last_step, *_ = chunk or (0, 0, None, _BEFORE_ALL)
    if stepped != (last_step is not None) and chunk is not None:
        return []  # points with and without steps are mixed
    bindings = {"series": series, "most": most}
    if stepped:
        return db.execute(_WITH_STEPS, {**bindings, "step": last_step}).fetchall()
    return db.execute(_WITHOUT_STEPS, {**bindings, "seq": last_seq}).fetchall()


def _in_order(rows: Sequence[Any]) -> bool:
    """Whether every point came later, and has a later step, than the one before. ``rows`` are in order of steps."""
    pairs = itertools.pairwise(rows)
    return all(row[0] < next_row[0] and (next_row[1] is None or row[1] < next_row[1]) for row, next_row in pairs)


def _add(kept: dict[tuple[int, int], tuple[float, int]], rows: Sequence[Any], stretch: int) -> None:
    """Counts points of the window outside of the chunks in a stretch."""
    if not rows:
        return
    *_, low, low_seq, high, high_seq, nan_seq = _of_points(rows)
    if low is not None:
        kept[stretch, 0] = min(kept.get((stretch, 0), (low, low_seq)), (low, low_seq), key=itemgetter(0))
        kept[stretch, 1] = max(kept.get((stretch, 1), (high, high_seq)), (high, high_seq), key=itemgetter(0))
    if nan_seq is not None:
        kept.setdefault((stretch, 2), (0.0, nan_seq))


def _of_points(rows: Sequence[Any]) -> tuple[Any, ...]:
    """The chunk of points in order."""
    times = [time_ms for _, _, time_ms, _ in rows]
    numbers = [(value, seq) for seq, _, _, value in rows if value is not None]
    nan_seq = next((seq for seq, _, _, value in rows if value is None), None)
    low = min(numbers, key=itemgetter(0), default=(None, None))
    high = max(numbers, key=itemgetter(0), default=(None, None))
    return (rows[0][0], rows[-1][0], rows[0][1], rows[-1][1], min(times), max(times), *low, *high, nan_seq)


def _of_chunks(rows: Sequence[Any]) -> tuple[Any, ...]:
    """The chunk of chunks in order."""
    low = min((row[6:8] for row in rows if row[6] is not None), key=itemgetter(0), default=(None, None))
    high = max((row[8:10] for row in rows if row[8] is not None), key=itemgetter(0), default=(None, None))
    nan_seq = next((row[10] for row in rows if row[10] is not None), None)
    times = min(row[4] for row in rows), max(row[5] for row in rows)
    return (rows[0][0], rows[-1][1], rows[0][2], rows[-1][3], *times, *low, *high, nan_seq)
