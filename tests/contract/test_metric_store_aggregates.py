"""Contract of every MetricStore: aggregates of metrics, and their values at chosen steps."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from services.core.adapters.sqlite.metrics import SqliteMetricStore
from services.core.adapters.sqlite.metrics.tallies import read_aggregates
from services.core.domain.usage import CPU, USAGE
from services.core.ports.metric_store import Aggregate, Batch, Column, MetricStore, Point, PointQuery
from tests.testbed.metric_batches import JOB, METRICS, OTHER, curve, metrics
from tests.testbed.sqlite_steps import steps_of_sqlite


@pytest.fixture(params=["sqlite"])
async def store(tmp_path: Path) -> AsyncGenerator[MetricStore]:
    opened = await SqliteMetricStore.open(tmp_path / "metrics")
    yield opened
    await opened.close()


def shown(aggregate: Aggregate) -> tuple[Any, ...]:
    """As text, so that NaN can be compared."""
    places = (
        (aggregate.last, aggregate.last_step),
        (aggregate.low, aggregate.low_step),
        (aggregate.high, aggregate.high_step),
    )
    numbers = " ".join(f"{value}@{step}" for value, step in places)
    return (aggregate.name, dict(aggregate.context), aggregate.rank, aggregate.count, numbers)


async def test_aggregates_have_the_last_smallest_and_largest_value_and_their_steps(store: MetricStore) -> None:
    await store.append(JOB, [metrics(0, (1, 0.5), (2, 0.1), (3, 0.9), (4, 0.1), (5, math.nan), (None, 0.4))])
    await store.append(JOB, [metrics(60, (1, math.nan), name="nan"), metrics(70, (1, math.inf), (2, 1.0), name="inf")])
    other = replace(METRICS, rank=1)
    await store.append(JOB, [metrics(90, (9, 7.0), name="acc"), metrics(0, (9, 8.0), name="acc", source=other)])
    assert [shown(aggregate) for aggregate in await store.aggregates(JOB)] == [
        ("acc", {}, 0, 1, "7.0@9 7.0@9 7.0@9"),
        ("inf", {}, 0, 2, "1.0@2 1.0@2 inf@1"),
        ("loss", {}, 0, 6, "0.4@None 0.1@2 0.9@3"),
        ("nan", {}, 0, 1, "nan@1 nan@None nan@None"),
    ]
    assert [aggregate.name for aggregate in await store.aggregates(JOB, ["loss", "none"])] == ["loss"]
    assert await store.aggregates("jnone") == []


async def test_aggregates_and_columns_are_of_the_newest_attempt_and_the_lowest_rank(store: MetricStore) -> None:
    await store.append(JOB, [metrics(0, (1, 0.1))])
    second, beside = replace(METRICS, attempt=2, rank=1), replace(METRICS, attempt=2, rank=3)
    await store.append(JOB, [metrics(0, (1, 3.0), source=beside), metrics(0, (1, 2.0), (2, 2.5), source=second)])
    assert [shown(aggregate)[2:4] for aggregate in await store.aggregates(JOB)] == [(1, 2)]
    assert await store.whole_columns(JOB, ["loss"], None, most=2) == {"loss": Column([1, 2], [2.0, 2.5])}
    few = await store.whole_columns(JOB, ["loss"], None, most=1)
    assert few == {"loss": Column([1, 2], (), 2)}, "two at least"
    assert await store.columns(JOB, {"loss": [1, 2, 3]}, None) == {"loss": Column([1, 2], [2.0, 2.5])}


def cpu(attempt: int, value: float) -> Batch:
    """A sample of usage, which the helper takes before the training reports anything."""
    source = replace(METRICS, attempt=attempt, source="usage")
    return Batch(source, 0, 10, (), [Point(0, 1000, CPU, None, value, USAGE)])


async def test_metrics_stay_visible_while_a_new_attempt_has_reported_only_its_usage(store: MetricStore) -> None:
    """A lost node: a sample of CPU of attempt 2 hid the curves of attempt 1, for ever if attempt 2 failed early."""
    await store.append(JOB, [metrics(0, (1, 0.5), (2, 0.1)), cpu(1, 1.0)])
    await store.append(JOB, [cpu(2, 3.0)])
    assert await curve(store) == [(1, 0.5), (2, 0.1)]
    assert [shown(aggregate) for aggregate in await store.aggregates(JOB)] == [("loss", {}, 0, 2, "0.1@2 0.1@2 0.5@1")]
    assert await store.whole_columns(JOB, ["loss"], None, most=9) == {"loss": Column([1, 2], [0.5, 0.1])}
    assert await store.columns(JOB, {"loss": [2]}, None) == {"loss": Column([2], [0.1])}
    assert await curve(store, PointQuery(attempt=2)) == []
    await store.append(JOB, [metrics(0, (1, 0.7), source=replace(METRICS, attempt=2))])
    assert await curve(store) == [(1, 0.7)]
    assert [aggregate.last for aggregate in await store.aggregates(JOB)] == [0.7]


async def test_usage_is_of_the_newest_attempt_also_before_its_training_reports(store: MetricStore) -> None:
    await store.append(JOB, [cpu(1, 1.0)])
    assert await curve(store, PointQuery(names=(CPU,))) == [(None, 1.0)]
    assert await curve(store) == []
    await store.append(JOB, [metrics(0, (1, 0.5)), cpu(2, 3.0)])
    assert [aggregate.last for aggregate in await store.usage(JOB)] == [3.0]
    assert await curve(store, PointQuery(names=(CPU,))) == [(None, 3.0)]
    assert [aggregate.last for aggregate in await store.aggregates(JOB, [CPU, "loss"])] == [0.5, 3.0]
    await store.append(JOB, [metrics(0, (1, 0.7), source=replace(METRICS, attempt=3))])
    assert await store.usage(JOB) == [], "that of an older attempt is not what its learners use now"


async def test_aggregates_of_the_newest_attempt_cost_the_same_after_many_attempts(tmp_path: Path) -> None:
    """Reads of a job's numbers search the index of the attempts: they do not read the series of older ones."""
    steps: dict[str, int] = {}
    for job, attempts in ((JOB, 2), (OTHER, 20)):
        store = await SqliteMetricStore.open(tmp_path)
        for attempt in range(1, attempts + 1):
            source = replace(METRICS, attempt=attempt)
            names = [Point(at, 1, f"m{at}", 1, 1.0) for at in range(50)]
            await store.append(job, [Batch(source, 0, 50, (), names), cpu(attempt, 1.0)])
        await store.append(job, [cpu(attempts + 1, 1.0)])
        await store.close()
        steps[job] = steps_of_sqlite(tmp_path / job, lambda reader: len(read_aggregates(reader, ())) == 50)
    assert steps[OTHER] < 1.2 * steps[JOB]


async def test_a_column_has_the_latest_value_of_each_step(store: MetricStore) -> None:
    points = [Point(0, 1, "loss", 1, 9.0, {"split": "val"}), Point(1, 1, "loss", 1, 0.1, {"split": "train"})]
    await store.append(JOB, [Batch(METRICS, 0, 10, (), points), metrics(10, (3, 0.3), (1, 0.2), (None, 5.0))])
    assert await store.columns(JOB, {"loss": [1]}, {"split": "val"}) == {"loss": Column([1], [9.0])}
    assert await store.columns(JOB, {"loss": [1]}, {"split": "test"}) == {}
    assert await store.columns(JOB, {"loss": [3, 1, 2]}, {}) == {"loss": Column([1, 3], [0.2, 0.3])}
    assert await store.whole_columns(JOB, ["none", "loss"], {}, most=9) == {"loss": Column([1, 3], [0.2, 0.3])}
    assert await store.whole_columns("jnone", ["loss"], None, most=9) == {}
    assert await store.columns("jnone", {"loss": [1]}, None) == {}


async def test_columns_of_several_metrics_are_read_at_once(store: MetricStore) -> None:
    await store.append(JOB, [metrics(0, (1, 0.1), (2, 0.2)), metrics(20, (1, 0.7), (3, 0.9), name="acc")])
    whole = await store.whole_columns(JOB, ["loss", "acc", "none"], None, most=9)
    assert whole == {"loss": Column([1, 2], [0.1, 0.2]), "acc": Column([1, 3], [0.7, 0.9])}
    chosen = await store.columns(JOB, {"loss": [2], "acc": [1], "none": [1]}, None)
    assert chosen == {"loss": Column([2], [0.2]), "acc": Column([1], [0.7])}


@pytest.mark.parametrize("change", ["DROP TABLE tallies", "UPDATE tallies SET seq = 1, low = 99"])
async def test_aggregates_that_an_older_version_did_not_carry_on_are_counted_from_the_points(
    tmp_path: Path, change: str
) -> None:
    store = await SqliteMetricStore.open(tmp_path)
    await store.append(JOB, [metrics(0, (1, 0.5), (2, 0.1))])
    await store.close()
    [index] = tmp_path.rglob("index.sqlite")
    with apsw.Connection(str(index)) as db:
        db.execute(change)
    db.close()
    store = await SqliteMetricStore.open(tmp_path)
    try:
        assert [shown(aggregate) for aggregate in await store.aggregates(JOB)] == [
            ("loss", {}, 0, 2, "0.1@2 0.1@2 0.5@1")
        ]
        await store.append(JOB, [metrics(20, (3, 0.05))])
        assert [shown(aggregate) for aggregate in await store.aggregates(JOB)] == [
            ("loss", {}, 0, 3, "0.05@3 0.05@3 0.5@1")
        ]
    finally:
        await store.close()


async def test_aggregates_survive_a_restart_and_a_copy(tmp_path: Path) -> None:
    store = await SqliteMetricStore.open(tmp_path)
    await store.append(JOB, [metrics(0, (1, 0.5), (2, math.nan), (3, 0.1))])
    before = [shown(aggregate) for aggregate in await store.aggregates(JOB)]
    await store.close()
    store = await SqliteMetricStore.open(tmp_path)
    try:
        extent = await store.extent(JOB)

        async def parts() -> AsyncGenerator[Any]:
            yield await store.points(JOB, PointQuery())

        await store.load(OTHER, extent.sources, parts())
        for job in (JOB, OTHER):
            assert [shown(aggregate) for aggregate in await store.aggregates(job)] == before
    finally:
        await store.close()


async def test_of_a_column_with_more_steps_than_requested_some_are_read_and_no_values(store: MetricStore) -> None:
    await store.append(JOB, [metrics(0, *((step * 10, 1.0) for step in range(1_000)), (50, 2.0), (0, 3.0))])
    column = (await store.whole_columns(JOB, ["loss"], None, most=5))["loss"]
    assert (column, column.count) == (Column([0, 2500, 5000, 7490, 9990], (), 1_000), 1_000)
    values = await store.columns(JOB, {"loss": column.steps}, None)
    assert values == {"loss": Column(column.steps, [3.0, 1.0, 1.0, 1.0, 1.0])}
