"""Small batches of lines and points for the suites of metric stores, and what a store then has."""

from __future__ import annotations

from dataclasses import replace

from services.core.ports.metric_store import (
    Batch,
    LineQuery,
    LogLine,
    MetricStore,
    Point,
    PointQuery,
    SourceId,
)

JOB, OTHER = "j0000000001", "j0000000002"
OUT = SourceId(1, "worker", 0, 1, "stdout")
METRICS = replace(OUT, source="metrics.jsonl")
WIDTH = 10
"""Bytes of each line in these tests."""


def log(start: int, *texts: str, source: SourceId = OUT, time_ms: int = 1000, final: bool = False) -> Batch:
    """Lines of WIDTH bytes each, from the byte ``start``."""
    lines = [LogLine(start + at * WIDTH, time_ms + at, text) for at, text in enumerate(texts)]
    return Batch(source, start, start + len(texts) * WIDTH, lines, final=final)


def metrics(start: int, *points: tuple[int | None, float], name: str = "loss", source: SourceId = METRICS) -> Batch:
    rows = [Point(start + at * WIDTH, 1000 + at, name, step, value) for at, (step, value) in enumerate(points)]
    return Batch(source, start, start + len(points) * WIDTH, (), rows)


async def texts(store: MetricStore, query: LineQuery | None = None, *, limit: int = 1000) -> list[str]:
    return [stored.line.text for stored in await store.lines(JOB, query or LineQuery(), limit=limit)]


async def curve(store: MetricStore, query: PointQuery | None = None) -> list[tuple[int | None, float]]:
    return [(stored.point.step, stored.point.value) for stored in await store.series(JOB, query or PointQuery())]
