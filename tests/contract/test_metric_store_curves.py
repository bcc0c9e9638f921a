"""Contract of every MetricStore: thinned curves, and windows of curves."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from services.core.adapters.sqlite.metrics import SqliteMetricStore
from services.core.adapters.sqlite.metrics.curves import MOST_POINTS, PointReader
from services.core.ports.metric_store import Batch, MetricStore, Point, PointQuery
from tests.testbed.metric_batches import JOB, METRICS, WIDTH, curve, metrics
from tests.testbed.sqlite_steps import steps_of_sqlite


@pytest.fixture(params=["sqlite"])
async def store(tmp_path: Path) -> AsyncGenerator[MetricStore]:
    opened = await SqliteMetricStore.open(tmp_path / "metrics")
    yield opened
    await opened.close()


async def test_a_thinned_curve_keeps_spikes_and_nan(store: MetricStore) -> None:
    values = [math.sin(at / 50) for at in range(10_000)]
    values[1234], values[5678], values[7000] = 99.0, -99.0, math.nan
    await store.append(JOB, [metrics(0, *enumerate(values))])
    thinned = await curve(store, PointQuery(max_points=100))
    assert 50 <= len(thinned) <= 110
    assert {(1234, 99.0), (5678, -99.0)} <= set(thinned)
    assert any(math.isnan(value) for _, value in thinned)
    assert [step for step, _ in thinned] == sorted(step for step, _ in thinned if step is not None)
    assert len(await curve(store, PointQuery(max_points=20_000))) == 10_000


@pytest.mark.parametrize("first_step", [0, None])
async def test_a_very_long_curve_is_thinned_exactly_also_while_it_grows(
    store: MetricStore, first_step: int | None
) -> None:
    values: list[float] = []
    for size in (1, 63, 1, 40_000, 700, 5_000, 77):
        start = len(values)
        values += [math.sin(at / 500) + (at % 7) / 100 for at in range(start, start + size)]
        for spike, value in ((30_001, 9.0), (44_444, -9.0), (45_700, math.inf), (20_000, math.nan)):
            if start <= spike < len(values):
                values[spike] = value
        rows = [(None if first_step is None else at, values[at]) for at in range(start, len(values))]
        await store.append(JOB, [metrics(start * WIDTH, *rows)])
    thinned = await curve(store, PointQuery(max_points=200))
    shown = [value for _, value in thinned]
    assert len(thinned) <= 210
    assert [shown[0], shown[-1]] == [values[0], values[-1]]
    assert {9.0, -9.0, math.inf} <= set(shown)
    assert sum(math.isnan(value) for value in shown) == 1
    if first_step is not None:  # of each part the largest value, to the accuracy of a part's length
        for first in range(0, 45_000, 1_000):
            inside = [value for step, value in thinned if step is not None and first <= step < first + 1_000]
            assert max(value for value in inside if not math.isnan(value)) >= values[first + 500]


async def test_windows_of_a_very_long_curve_are_exact(store: MetricStore) -> None:
    points = [Point(at, 1_000 * at, "loss", 2 * at, float(at * 7919 % 10_007)) for at in range(30_000)]
    await store.append(JOB, [Batch(METRICS, 0, 30_000, (), points)])
    for query in (
        PointQuery(max_points=40, from_step=10_001, to_step=50_001),
        PointQuery(max_points=40, since_ms=5_000_500, until_ms=25_000_500),
        PointQuery(max_points=40, since_ms=29_000_000),
        PointQuery(max_points=40, from_step=2_000, until_ms=29_999_000),
        PointQuery(max_points=4_000, since_ms=5_000_500, until_ms=5_100_500),
    ):
        within = [
            (point.step or 0, point.value)
            for point in points
            if (query.from_step or 0) <= (point.step or 0) <= (query.to_step or 2**60)
            and (query.since_ms or 0) <= point.time_ms <= (query.until_ms or 2**60)
        ]
        shown = await curve(store, query)
        assert (shown[0], shown[-1]) == (within[0], within[-1])
        assert set(shown) <= set(within)
        assert min(value for _, value in shown) == min(value for _, value in within)
        assert max(value for _, value in shown) == max(value for _, value in within)
        assert len(shown) <= (query.max_points or 0) + 2


@pytest.mark.parametrize("length", [30, 300, 3_000, 30_010])
async def test_a_window_of_steps_has_no_points_without_a_step(store: MetricStore, length: int) -> None:
    """On curves of thousands of points a window with ``to_step`` alone had some."""
    await store.append(JOB, [metrics(0, *((None, float(at)) for at in range(length)))])
    for query in (
        PointQuery(to_step=5),
        PointQuery(from_step=0),
        PointQuery(from_step=0, to_step=2**62),
        PointQuery(to_step=5, since_ms=0, until_ms=2**62),
    ):
        assert await curve(store, query) == []
        assert await curve(store, replace(query, max_points=20)) == []
    assert len(await curve(store, PointQuery(max_points=20, since_ms=0))) >= 20


@pytest.mark.parametrize("again", [(7, 9.0), (None, 9.0)], ids=["a step again", "without a step"])
async def test_a_very_long_curve_shows_points_out_of_order(store: MetricStore, again: tuple[int | None, float]) -> None:
    await store.append(JOB, [metrics(0, *((at, 5.0) for at in range(20_000)))])
    await store.append(JOB, [metrics(20_000 * WIDTH, again)])
    for end in (20_001, 20_201):
        assert again in await curve(store, PointQuery(max_points=100))
        await store.append(JOB, [metrics(end * WIDTH, *((at, 5.0) for at in range(end, end + 200)))])


async def test_a_window_has_the_detail_that_the_whole_curve_lacks(store: MetricStore) -> None:
    await store.append(JOB, [metrics(0, *((at, at / 2) for at in range(10_000)))])
    whole = await curve(store, PointQuery(max_points=100))
    assert [whole[0], whole[-1]] == [(0, 0.0), (9_999, 4_999.5)]
    window = await curve(store, PointQuery(max_points=100, from_step=500, to_step=549))
    assert window == [(at, at / 2) for at in range(500, 550)]
    reduced = await curve(store, PointQuery(max_points=10, from_step=500))
    assert len(reduced) <= 12
    assert [reduced[0], reduced[-1]] == [(500, 250.0), (9_999, 4_999.5)]
    assert await curve(store, PointQuery(to_step=-1)) == []


async def test_a_window_in_time_has_the_points_that_were_measured_in_it(store: MetricStore) -> None:
    points = [Point(at, 1_000 + at, "loss", at if at % 2 else None, float(at)) for at in range(10)]
    await store.append(JOB, [Batch(METRICS, 0, 10, (), points)])
    assert await curve(store, PointQuery(since_ms=1_003, until_ms=1_006)) == [
        (3, 3.0),
        (5, 5.0),
        (None, 4.0),
        (None, 6.0),
    ]
    within = await store.points(JOB, PointQuery(since_ms=1_008))
    assert [stored.point.value for stored in within] == [8.0, 9.0]
    assert [stored.seq for stored in await store.points(JOB, PointQuery(from_step=5, to_step=7))] == [6, 8]


async def test_a_thousand_learners_curves_together_are_no_more_than_one_reading_can_hold(store: MetricStore) -> None:
    ranks = [replace(METRICS, rank=rank) for rank in range(1_000)]
    for source in ranks:
        await store.append(JOB, [metrics(0, *((step, float(step)) for step in range(300)), source=source)])
    points = await store.series(JOB, PointQuery(max_points=100_000))
    assert len(points) <= 1.5 * MOST_POINTS
    assert {stored.source.rank for stored in points} == set(range(1_000)), "each curve is there, coarser"
    single = await store.series(JOB, PointQuery(max_points=100_000, rank=7))
    assert len(single) == 300, "a single curve is whole"


async def test_a_long_curve_is_read_for_what_a_short_one_costs(tmp_path: Path) -> None:
    """A row was read for each 64 points of the curve, whatever was shown of it: of 10,000,000 points 156,250 rows."""
    store = await SqliteMetricStore.open(tmp_path)
    lengths = {"j-short": 4_096, "j-long": 65_536}
    for job, length in lengths.items():
        await store.append(job, [metrics(0, *((step, float(step)) for step in range(length)))])
    await store.close()

    def reads_a_curve(reader: apsw.Connection) -> bool:
        return len(PointReader(reader).curves(PointQuery(max_points=20))) >= 20

    steps = {job: steps_of_sqlite(tmp_path / job, reads_a_curve) for job in lengths}
    assert steps["j-long"] < 1.2 * steps["j-short"]
