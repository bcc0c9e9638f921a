"""Contract of every MetricStore: what is beyond the bounds of a job is left out, and it is said."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.adapters.sqlite.metrics import SqliteMetricStore
from services.core.ports.metric_store import (
    JobBounds,
    LogLine,
    MetricStore,
    Point,
    PointQuery,
    SourceState,
    Stored,
    StoredLine,
    StoredPoint,
)
from tests.testbed.metric_batches import JOB, METRICS, OTHER, OUT, WIDTH, log, metrics, texts

BOUNDED: dict[str, Callable[[Path, JobBounds], Awaitable[MetricStore]]] = {
    "sqlite": lambda root, bounds: SqliteMetricStore.open(root, bounds=bounds)
}


@pytest.fixture(params=list(BOUNDED))
def bounded(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[JobBounds], Awaitable[MetricStore]]:
    return lambda bounds: BOUNDED[request.param](tmp_path / "metrics", bounds)


Bounded = Callable[[JobBounds], Awaitable[MetricStore]]


async def test_lines_beyond_the_bound_are_left_out_and_a_line_says_so_once(bounded: Bounded) -> None:
    bounds = JobBounds(log_bytes=1_000)
    store = await bounded(bounds)
    assert await store.append(JOB, [log(0, "x" * 900)]) == [10]
    assert await store.append(JOB, [log(10, "y" * 900, "y"), log(0, "z", source=replace(OUT, rank=1))]) == [30, 10]
    assert await store.append(JOB, [log(30, "after", final=True)]) == [40]  # offsets advance: no helper sends for ever
    await store.close()
    store = await bounded(bounds)
    await store.append(JOB, [log(0, "again", source=replace(OUT, rank=2))])
    kept = await texts(store)
    assert kept[0] == "x" * 900
    assert [text[:44] for text in kept[1:]] == ["[weft: this job has stored 1000 bytes of log"]
    assert await store.left_out(JOB) == {"log_bytes": 5}
    assert (await store.committed(JOB, 1, 0))[0].final
    await store.append(OTHER, [log(0, "not bounded by its neighbour")])
    assert await store.left_out(OTHER) == {}
    await store.close()


async def test_no_lines_follow_the_line_that_says_so_also_after_a_restart(bounded: Bounded) -> None:
    """Small batches were stored again after a restart: a log with gaps that nothing marked."""
    bounds = JobBounds(log_bytes=1_000)
    store = await bounded(bounds)
    await store.append(JOB, [log(0, "first"), log(10, "".join(map(str, range(1_000))))])
    for start in (20, 30):
        await store.append(JOB, [log(start, "small")])
        await store.close()
        store = await bounded(bounds)
    assert [text[:44] for text in await texts(store)] == ["first", "[weft: this job has stored 1000 bytes of log"]
    assert await store.left_out(JOB) == {"log_bytes": 3}
    await store.close()


async def test_points_beyond_the_bound_are_left_out_and_sequence_numbers_have_no_gap(bounded: Bounded) -> None:
    store = await bounded(JobBounds(points=3))
    await store.append(JOB, [metrics(0, (0, 1.0), (1, 1.0))])
    assert await store.append(JOB, [metrics(20, (2, 1.0), (3, 1.0), (4, 1.0))]) == [50]
    assert [(stored.seq, stored.point.step) for stored in await store.points(JOB, PointQuery())] == [
        (1, 0),
        (2, 1),
        (3, 2),
    ]
    assert await store.left_out(JOB) == {"points": 2}
    await store.close()


async def test_series_beyond_the_bound_are_left_out_and_the_first_ones_continue(bounded: Bounded) -> None:
    store = await bounded(JobBounds(series=2))
    for at, name in enumerate(["a", "b", "c", "d", "a"]):
        await store.append(JOB, [metrics(at * WIDTH, (at, 1.0), name=name)])
    assert [(stored.seq, stored.point.name) for stored in await store.points(JOB, PointQuery())] == [
        (1, "a"),
        (2, "b"),
        (3, "a"),
    ]
    assert await store.left_out(JOB) == {"series": 2}
    await store.close()


async def test_sources_beyond_the_bound_are_left_out_and_the_first_ones_continue(bounded: Bounded) -> None:
    """A learner that truncates its file again and again makes a new source each time."""
    store = await bounded(JobBounds(sources=2))
    for generation in range(5):
        assert await store.append(JOB, [log(0, "x", source=replace(OUT, generation=generation))]) == [10]
    await store.append(JOB, [log(10, "y")])
    assert await texts(store) == ["x", "x", "y"]
    assert await store.left_out(JOB) == {"sources": 3}
    assert len(await store.committed(JOB, 1, 0)) == 2
    await store.close()


async def test_bounds_do_not_apply_to_what_is_restored(bounded: Bounded) -> None:
    store = await bounded(JobBounds(log_bytes=1, points=1, series=1, sources=1))
    line = StoredLine(1, OUT, LogLine(0, 1, "x" * 100))
    points = [StoredPoint(seq, METRICS, Point(seq, 1, f"m{seq}", seq, 1.0)) for seq in (1, 2)]

    async def parts() -> AsyncGenerator[Stored]:
        yield [line]
        yield points

    await store.load(JOB, [SourceState(OUT, 100, final=True), SourceState(METRICS, 100, final=True)], parts())
    assert await store.counts(JOB) == (1, 2)
    assert await store.left_out(JOB) == {}
    await store.close()
