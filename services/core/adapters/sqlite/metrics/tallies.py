"""The tally of each series: count, last, smallest and largest value of its points, kept while points are stored.

So a list of jobs shows these numbers for the price of one row, however long the series is. A tally is written with the
points that it counts, and names the last of them. One that is missing, or that an older version did not carry on, is
counted anew from the points.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import apsw
import msgspec

from services.core.domain.usage import USAGE, USAGE_NAMES
from services.core.ports.metric_store import Aggregate, Column, even_places

TABLE: Final = """CREATE TABLE IF NOT EXISTS tallies (series INTEGER PRIMARY KEY, seq INTEGER NOT NULL,
    count INTEGER NOT NULL, last REAL, last_step INTEGER, low REAL, low_step INTEGER, high REAL, high_step INTEGER)"""
"""``seq``: of the last point that is counted. ``last``: NULL means NaN. ``low`` and ``high``: NULL: no number yet."""
PUT: Final = "INSERT OR REPLACE INTO tallies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
NAMED: Final = """CASE :names WHEN '[]' THEN :with_usage OR context != :usage
    ELSE name IN (SELECT value FROM json_each(:names)) END"""
"""SQL: which series match some names, with the values of ``named``. Without names: all, with those of usage or not."""
_NEWEST: Final = "(SELECT max(attempt) FROM series)"
_NEWEST_OF_TRAINING: Final = "(SELECT attempt FROM series WHERE context != :usage ORDER BY attempt DESC LIMIT 1)"
# ruff: noqa: S608 - the parts of these statements are constants; values from outside are bound
OF_NEWEST: Final = f"""attempt IN ({_NEWEST}, {_NEWEST_OF_TRAINING})
    AND attempt = CASE context WHEN :usage THEN {_NEWEST} ELSE {_NEWEST_OF_TRAINING} END"""
"""SQL: which series are of the newest attempt. Usage alone does not make an attempt the newest one of the training's
metrics: it is measured before the training reports anything. IN lets SQLite search the index of the attempts.
"""
_VALUES: Final = "t.count, t.last, t.last_step, t.low, t.low_step, t.high, t.high_step"
_OF_SERIES: Final = f"""
    SELECT s.id, s.rank, s.name, s.context, {_VALUES}
    FROM series s LEFT JOIN tallies t ON t.series = s.id AND t.seq = s.last_seq
    WHERE {OF_NEWEST}
    AND {NAMED}
    ORDER BY s.name, s.context, s.rank"""
_ALL: Final = f"SELECT s.id, {_VALUES} FROM series s JOIN tallies t ON t.series = s.id AND t.seq = s.last_seq"
_POINTS: Final = "SELECT value, step FROM points WHERE series = ? ORDER BY seq"


@dataclass(slots=True)
class Tally:
    """Of one series. ``low`` and ``high`` are infinite until there is a number."""

    count: int = 0
    last: float = math.nan
    last_step: int | None = None
    low: float = math.inf
    low_step: int | None = None
    high: float = -math.inf
    high_step: int | None = None
    numbers: bool = False
    """There was a value that is not NaN."""

    def add(self, value: float, step: int | None) -> None:
        """Counts one more value. Of equal ones the first is the smallest or largest."""
        self.count += 1
        self.last, self.last_step = value, step
        if value < self.low or (value == value and not self.numbers):  # noqa: PLR0124 - NaN is not equal to itself
            self.low, self.low_step = value, step
        if value > self.high or (value == value and not self.numbers):  # noqa: PLR0124
            self.high, self.high_step = value, step
            self.numbers = True

    def row(self, series: int, seq: int) -> tuple[Any, ...]:
        """For ``PUT``."""
        low, high = (self.low, self.high) if self.numbers else (None, None)
        last = None if math.isnan(self.last) else self.last
        return (series, seq, self.count, last, self.last_step, low, self.low_step, high, self.high_step)


def context_text(context: Mapping[str, str]) -> str:
    """JSON, keys in order."""
    return msgspec.json.encode(context, order="sorted").decode() if context else "{}"


def named(names: Sequence[str], *, with_usage: bool = False) -> dict[str, str | bool]:
    """The values of ``NAMED``."""
    return {"names": json.dumps(list(names)), "usage": context_text(USAGE), "with_usage": with_usage}


def read_usage(db: apsw.Connection) -> list[Aggregate]:
    """Usage of the newest attempt: one for each name and rank."""
    rows: list[Any] = db.execute(_OF_SERIES, named(USAGE_NAMES)).fetchall()
    return [
        _aggregate(name, context, rank, _tally(values) if values[0] is not None else _counted(db, row_id))
        for row_id, rank, name, context, *values in rows
        if context == context_text(USAGE)
    ]


def read_tallies(db: apsw.Connection) -> dict[int, Tally]:
    """The tallies of all series by their row ids; those that are missing are counted anew."""
    rows: list[Any] = db.execute(_ALL).fetchall()
    tallies = {row_id: _tally(values) for row_id, *values in rows}
    every: list[Any] = db.execute("SELECT id FROM series").fetchall()
    return {row_id: tallies.get(row_id) or _counted(db, row_id) for (row_id,) in every}


def read_aggregates(db: apsw.Connection, names: Sequence[str]) -> list[Aggregate]:
    """One for each name and context of the newest attempt, of its lowest rank. No names: all."""
    rows: list[Any] = db.execute(_OF_SERIES, named(names)).fetchall()
    aggregates: dict[tuple[str, str], Aggregate] = {}
    for row_id, rank, name, context, *values in rows:
        if (name, context) in aggregates:
            continue
        tally = _tally(values) if values[0] is not None else _counted(db, row_id)
        aggregates[name, context] = _aggregate(name, context, rank, tally)
    return list(aggregates.values())


def _aggregate(name: str, context: str, rank: int, tally: Tally) -> Aggregate:
    return Aggregate(
        name=name,
        context=msgspec.json.decode(context),
        rank=rank,
        count=tally.count,
        last=tally.last,
        last_step=tally.last_step,
        low=tally.low if tally.numbers else math.nan,
        low_step=tally.low_step,
        high=tally.high if tally.numbers else math.nan,
        high_step=tally.high_step,
    )


_SERIES_OF: Final = f"""
    SELECT id, context FROM series WHERE {OF_NEWEST} AND name = :name
    AND (:context IS NULL OR context = :context) ORDER BY context, rank LIMIT 1"""
_COUNT_STEPS: Final = "SELECT count(DISTINCT step) FROM points WHERE series = ? AND step IS NOT NULL"
_STEPS_AT: Final = """
    SELECT step FROM (
        SELECT step, row_number() OVER (ORDER BY step) - 1 AS place FROM (
            SELECT DISTINCT step FROM points WHERE series = :series AND step IS NOT NULL))
    WHERE place IN (SELECT value FROM json_each(:places)) ORDER BY step"""
_WHOLE: Final = """
    SELECT p.step, p.value FROM (
        SELECT max(seq) AS seq FROM points WHERE series = ? AND step IS NOT NULL GROUP BY step LIMIT ?) latest
    JOIN points p ON p.seq = latest.seq ORDER BY p.step"""
_AT: Final = """
    SELECT p.step, p.value FROM (
        SELECT max(seq) AS seq FROM points
        WHERE series = :series AND step IN (SELECT value FROM json_each(:steps)) GROUP BY step) latest
    JOIN points p ON p.seq = latest.seq ORDER BY p.step"""


def read_whole_column(db: apsw.Connection, name: str, context: str | None, *, most: int) -> Column | None:
    """All steps of the series that ``read_column`` reads, with their values; of more than ``most`` some, without."""
    series = _series_of(db, name, context)
    if series is None:
        return None
    rows = list(_rows(db.execute(_WHOLE, (series, most + 1))))
    if len(rows) <= most:
        return _column(rows)
    count: int = db.execute(_COUNT_STEPS, (series,)).get
    places = json.dumps(even_places(count, most))
    steps = _rows(db.execute(_STEPS_AT, {"series": series, "places": places}))
    return Column([step for (step,) in steps], (), count)


def read_column(db: apsw.Connection, name: str, context: str | None, steps: Sequence[int]) -> Column | None:
    """The latest values at these steps, of the lowest rank of the newest attempt; None if there is no such series."""
    series = _series_of(db, name, context)
    if series is None:
        return None
    return _column(list(_rows(db.execute(_AT, {"series": series, "steps": json.dumps(list(steps))}))))


def _series_of(db: apsw.Connection, name: str, context: str | None) -> int | None:
    """The row id of the series that a column is read from."""
    row: Any = db.execute(_SERIES_OF, {"name": name, "context": context, "usage": context_text(USAGE)}).fetchone()
    return None if row is None else int(row[0])


def _column(rows: Sequence[Any]) -> Column:
    return Column([step for step, _ in rows], [math.nan if value is None else value for _, value in rows])


def _counted(db: apsw.Connection, series: int) -> Tally:
    tally = Tally()
    for value, step in _rows(db.execute(_POINTS, (series,))):
        tally.add(math.nan if value is None else value, step)
    return tally


def _tally(values: Sequence[Any]) -> Tally:
    count, last, last_step, low, low_step, high, high_step = values
    if low is None:
        return Tally(count, math.nan if last is None else last, last_step)
    return Tally(count, math.nan if last is None else last, last_step, low, low_step, high, high_step, numbers=True)


def _rows(cursor: Any) -> Iterable[Any]:
    """SQLite's rows are of the types of our tables."""
    return cursor  # type: ignore[no-any-return]
