"""Hostile texts and numbers in lines and points, on every MetricStore: stored exactly, or their batch refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.core.adapters.sqlite.metrics import SqliteMetricStore
from services.core.domain.errors import InvalidRequest, TooLarge
from services.core.ports.metric_store import Batch, LineQuery, LogLine, MetricStore, Point, PointQuery, SourceId
from tests.contract.hostile import HUGE, PLAIN, TEXTS, Refusal, attempt, names

JOB, OTHER = "j0000000001", "j0000000002"
OUT = SourceId(1, "worker", 0, 1, "stdout")


@pytest.fixture(params=["sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[MetricStore]:
    opened = await SqliteMetricStore.open(tmp_path / "metrics")
    yield opened
    await opened.close()


def log(start: int, text: str) -> Batch:
    return Batch(OUT, start, start + 10, [LogLine(start, 1, text)])


async def texts(store: MetricStore, job: str, query: LineQuery | None = None) -> list[str]:
    return [stored.line.text for stored in await store.lines(job, query or LineQuery())]


def with_text(place: str, text: str) -> Batch:
    """A batch with a line and a point that has the text in this place."""
    source, line, point = OUT, LogLine(0, 1, "line"), Point(0, 1, "loss", 1, 0.5, {"subset": "val"})
    match place:
        case "line":
            line = replace(line, text=text)
        case "name":
            point = replace(point, name=text)
        case "key of the context":
            point = replace(point, context={text: "x"})
        case "value of the context":
            point = replace(point, context={"x": text})
        case _:
            source = replace(source, **dict[str, Any]({place: text}))
    return Batch(source, 0, 10, [line], [point])


@pytest.mark.parametrize("place", ["line", "name", "key of the context", "value of the context", "source", "role"])
async def test_a_hostile_text_is_stored_exactly_or_its_batch_refused(store: MetricStore, place: str) -> None:
    await store.append(OTHER, [log(0, "other")])
    for number, text in enumerate(names(huge=place in {"line", "name", "value of the context", "source"})):
        job, batch = f"j{number}", with_text(place, TEXTS[text])
        if isinstance(await attempt(store.append(job, [batch])), Refusal):
            assert text not in PLAIN
            assert await store.counts(job) == (0, 0)
            assert await store.committed(job, 1, 0) == []
            assert await store.append(job, [log(0, "line")]) == [10]
        else:
            await assert_stored(store, job, batch)
        await store.delete(job)
    assert await texts(store, OTHER) == ["other"]
    assert store.damaged() == {}


async def assert_stored(store: MetricStore, job: str, batch: Batch) -> None:
    source, (line,), (point,) = batch.source, batch.lines, batch.points
    assert [(stored.source, stored.line) for stored in await store.lines(job, LineQuery())] == [(source, line)]
    query = PointQuery(names=(point.name,))
    assert [(stored.source, stored.point) for stored in await store.points(job, query)] == [(source, point)]
    assert [stored.point for stored in await store.series(job, query)] == [point]
    assert {name: stored.point for name, stored in (await store.latest(job)).items()} == {point.name: point}
    assert [state.source for state in await store.committed(job, 1, 0)] == [source]
    assert await texts(store, job, LineQuery(role=source.role, stream=source.source)) == [line.text]


@pytest.mark.parametrize(
    "broken",
    [
        Batch(replace(OUT, attempt=2**70), 0, 10),
        Batch(replace(OUT, rank=-(2**70)), 0, 10),
        Batch(replace(OUT, run=2**63), 0, 10),
        Batch(replace(OUT, generation=2**63), 0, 10),
        Batch(OUT, 0, 10, [LogLine(0, 2**70, "a")]),
        Batch(OUT, 0, 10, (), [Point(0, 2**70, "loss", 1, 1.0)]),
    ],
    ids=["attempt", "rank", "run", "generation", "time of a line", "time of a point"],
)
async def test_a_number_beyond_64_bits_refuses_its_own_batch_only(store: MetricStore, broken: Batch) -> None:
    sound, refused = await asyncio.gather(
        store.append(JOB, [log(0, "a")]), store.append(JOB, [broken]), return_exceptions=True
    )
    assert sound == [10]
    assert isinstance(refused, (InvalidRequest, TooLarge))
    assert await store.append(JOB, [log(10, "b")]) == [20]
    assert await texts(store, JOB) == ["a", "b"]
    assert store.damaged() == {}


async def test_a_hostile_query_finds_nothing_or_is_refused(store: MetricStore) -> None:
    await store.append(JOB, [log(0, "line"), Batch(replace(OUT, rank=1), 0, 1, (), [Point(0, 1, "loss", 1, 1.0)])])
    for hostile in TEXTS.values():
        for call in (
            store.lines(JOB, LineQuery(role=hostile)),
            store.lines(JOB, LineQuery(stream=hostile)),
            store.points(JOB, PointQuery(names=(hostile,))),
            store.series(JOB, PointQuery(names=(hostile,))),
            store.lines(hostile, LineQuery()),
            store.delete(hostile),
        ):
            result = await attempt(call)
            assert isinstance(result, Refusal) or not result
        matching = await attempt(store.lines(JOB, LineQuery(search=hostile)))
        assert isinstance(matching, Refusal) or len(matching) == (not hostile)
    assert await texts(store, JOB) == ["line"]


async def test_patterns_of_10_mb_are_refused(store: MetricStore) -> None:
    await store.append(JOB, [log(0, "line")])
    for pattern in ("(" * 1_000_000, "a{1000}{1000}", HUGE):
        assert isinstance(await attempt(store.lines(JOB, LineQuery(search=pattern))), Refusal)
    assert await texts(store, JOB, LineQuery(search="l.ne")) == ["line"]
