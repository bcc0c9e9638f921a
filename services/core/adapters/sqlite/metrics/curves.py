"""Reads metric points, as reported and as curves.

A curve is one (name, context, rank) of the newest attempt that reported anything but usage (of usage: of the newest
one that reported anything): the last value of each step, by step. Points without a step follow, in the order of their
arrival. Long curves are thinned: a curve is divided into equal parts, and the smallest and the largest value of each
part are kept, and a NaN if it has one, so that neither a spike nor a divergence disappears. The first and the last step
are kept, too. Very long curves are thinned from chunks (``pyramid``), others by SQLite, without the interpreter's lock.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import apsw
import msgspec

from services.core.adapters.sqlite.metrics.pyramid import bounds_of, thin
from services.core.adapters.sqlite.metrics.tallies import NAMED, OF_NEWEST, named
from services.core.ports.metric_store import Point, PointQuery, SourceId, StoredPoint

MOST_POINTS: Final = 100_000
"""Of all thinned curves of a reading together: each point takes about 400 bytes."""
SOURCES: Final = "SELECT id, attempt, role, rank, run, source, generation FROM sources"
_ANY_ATTEMPT: Final = "TRUE"
_OF_ATTEMPT: Final = "attempt = :attempt"
_COLUMNS: Final = "p.seq, p.series, p.source, p.offset, p.time_ms, p.step, p.value"
_WINDOW: Final = {
    "from_step": "step >= :from_step",
    "to_step": "step <= :to_step",
    "since_ms": "time_ms >= :since_ms",
    "until_ms": "time_ms <= :until_ms",
}
_IN_ORDER: Final = "ORDER BY p.step IS NULL, p.step, p.seq"
# ruff: noqa: S608 - the parts of these statements are constants; values from outside are bound
_LATEST: Final = """
    WITH latest(seq, step) AS MATERIALIZED (
        SELECT max(seq), step FROM points WHERE series = :series AND step IS NOT NULL {window} GROUP BY step
        UNION ALL SELECT seq, NULL FROM points WHERE series = :series AND step IS NULL {window})"""
_COUNT: Final = "SELECT count(*) FROM latest"
_CURVE: Final = f"SELECT {_COLUMNS} FROM latest JOIN points p ON p.seq = latest.seq {_IN_ORDER}"
_KEPT: Final = f"SELECT {_COLUMNS} FROM points p WHERE p.seq IN (SELECT value FROM json_each(:seqs)) {_IN_ORDER}"
# min() and max() also select the other columns of their row (SQLite, "bare columns in an aggregate").
_THINNED: Final = f""",
    placed AS MATERIALIZED (
        SELECT p.seq, p.value, ntile(:stretches) OVER ({_IN_ORDER}) AS stretch
        FROM latest JOIN points p ON p.seq = latest.seq),
    kept(seq) AS (
        SELECT seq FROM (SELECT seq, min(value) FROM placed GROUP BY stretch)
        UNION SELECT seq FROM (SELECT seq, max(value) FROM placed GROUP BY stretch)
        UNION SELECT min(seq) FROM placed WHERE value IS NULL GROUP BY stretch
        UNION SELECT seq FROM (SELECT seq, min(step) FROM latest WHERE step IS NOT NULL)
        UNION SELECT seq FROM (SELECT seq, max(step) FROM latest WHERE step IS NOT NULL))
    SELECT {_COLUMNS} FROM kept JOIN points p ON p.seq = kept.seq {_IN_ORDER}"""


class PointReader:
    """Queries on one job's points. ``reader``: a connection within a snapshot."""

    def __init__(self, reader: apsw.Connection) -> None:
        self._reader = reader

    def points(self, query: PointQuery, limit: int) -> list[StoredPoint]:
        chosen = self._chosen(query, _ANY_ATTEMPT if query.attempt is None else _OF_ATTEMPT)
        # '+' makes SQLite search by seq, not by series: a follower reads the newest few of all.
        rows = self._reader.execute(
            f"SELECT {_COLUMNS} FROM points p WHERE seq > :after AND +series IN (SELECT value FROM json_each(:chosen)) "
            f"{_window(query)} ORDER BY seq LIMIT :limit",
            {
                "after": min(query.after_seq, 2**63 - 1),
                "chosen": json.dumps(list(chosen)),
                "limit": limit,
                **bounds_of(query),
            },
        ).fetchall()
        return list(self._stored(rows, chosen))

    def curves(self, query: PointQuery) -> list[StoredPoint]:
        chosen = self._chosen(query, OF_NEWEST if query.attempt is None else _OF_ATTEMPT)
        if query.max_points is not None and chosen:
            query = replace(query, max_points=min(query.max_points, max(1, MOST_POINTS // len(chosen))))
        rows = [row for series in chosen for row in self._curve(series, query)]
        return list(self._stored(rows, chosen))

    def latest(self) -> dict[str, StoredPoint]:
        chosen = self._chosen(PointQuery(), _ANY_ATTEMPT)
        rows = self._reader.execute(
            f"SELECT {_COLUMNS} FROM "
            f"(SELECT name, max(last_seq) AS seq FROM series WHERE {NAMED} GROUP BY name) newest "
            "JOIN points p ON p.seq = newest.seq ORDER BY newest.name",
            named(()),
        ).fetchall()
        return {stored.point.name: stored for stored in self._stored(rows, chosen)}

    def _curve(self, series: int, query: PointQuery) -> Sequence[Sequence[Any]]:
        window, values = _window(query), {"series": series, **bounds_of(query)}
        most = query.max_points
        if most is not None:
            thinned = thin(self._reader, series, query, max(1, most // 2), window)
            if thinned.seqs is not None:
                return self._reader.execute(_KEPT, {"seqs": json.dumps(thinned.seqs)}).fetchall()
            if thinned.near is not None:
                window += " AND step >= :near_from AND step <= :near_to"
                values["near_from"], values["near_to"] = thinned.near
        latest = _LATEST.format(window=window)
        if most is None or self._reader.execute(latest + _COUNT, values).get <= most:
            return self._reader.execute(latest + _CURVE, values).fetchall()
        return self._reader.execute(latest + _THINNED, {**values, "stretches": max(1, most // 2)}).fetchall()

    def _chosen(self, query: PointQuery, attempts: str) -> dict[int, tuple[str, Mapping[str, str]]]:
        """Row id -> (name, context) of the series that match, in the order of curves. ``attempts``: SQL."""
        rows: list[Any] = self._reader.execute(
            "SELECT id, name, context FROM series WHERE (:rank IS NULL OR rank = :rank) "
            f"AND {attempts} AND {NAMED} ORDER BY name, context, rank, attempt",
            {"rank": query.rank, "attempt": query.attempt, **named(query.names, with_usage=query.usage)},
        ).fetchall()
        return {row_id: (name, msgspec.json.decode(context)) for row_id, name, context in rows}

    def _stored(
        self, rows: Iterable[Sequence[Any]], series: Mapping[int, tuple[str, Mapping[str, str]]]
    ) -> Iterator[StoredPoint]:
        source_rows: list[Any] = self._reader.execute(SOURCES).fetchall()
        sources = {row_id: SourceId(*rest) for row_id, *rest in source_rows}
        for seq, series_id, source, offset, time_ms, step, value in rows:
            name, context = series[series_id]
            number = math.nan if value is None else value
            yield StoredPoint(seq, sources[source], Point(offset, time_ms, name, step, number, context))


def _window(query: PointQuery) -> str:
    """SQL of the bounds that the query has."""
    return "".join(f" AND {term}" for name, term in _WINDOW.items() if getattr(query, name) is not None)
