"""Contract of every MetricStore."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.core.adapters.sqlite.metrics import SqliteMetricStore
from services.core.adapters.sqlite.metrics.lines import LineReader
from services.core.domain.errors import InvalidRequest, NotFound, Unavailable
from services.core.ports.metric_store import (
    Batch,
    Extent,
    FilePart,
    LinePage,
    LineQuery,
    LogLine,
    MetricStore,
    Point,
    PointQuery,
    SourceId,
    SourceState,
    Stored,
)
from tests.testbed.metric_batches import JOB, METRICS, OTHER, OUT, WIDTH, curve, log, metrics, texts
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]
Opener = Callable[[Path], Awaitable[MetricStore]]
KINDS: dict[str, Opener] = {"sqlite": SqliteMetricStore.open}


@pytest.fixture(params=list(KINDS))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[MetricStore]:
    opened = await KINDS[request.param](tmp_path / "metrics")
    yield opened
    await opened.close()


async def test_an_unknown_job_is_empty(store: MetricStore) -> None:
    assert await store.lines(JOB, LineQuery()) == []
    assert await store.points(JOB, PointQuery()) == []
    assert await store.series(JOB, PointQuery()) == []
    assert await store.latest(JOB) == {}
    assert await store.counts(JOB) == (0, 0)
    assert await store.committed(JOB, 1, 0) == []


async def test_an_appended_line_and_point_are_read_back_exactly(store: MetricStore) -> None:
    line = LogLine(3, 1234, "Zählwerk \x1b[1m\U0001f9f5 \x00", partial=True)
    point = Point(90, 1235, "acc", 7, 0.5, {"subset": "val", "a": "b"})
    assert await store.append(JOB, [Batch(OUT, 0, 100, [line], [point])]) == [100]
    (stored,) = await store.lines(JOB, LineQuery())
    assert (stored.seq, stored.source, stored.line, stored.stream) == (1, OUT, line, "stdout")
    (stored_point,) = await store.points(JOB, PointQuery())
    assert (stored_point.seq, stored_point.source, stored_point.point) == (1, OUT, point)


async def test_sequence_numbers_have_no_gaps_and_count_per_job(store: MetricStore) -> None:
    rank1 = replace(OUT, rank=1)
    await store.append(JOB, [log(0, "a", "b"), log(0, "c", source=rank1), metrics(0, (1, 1.0), (2, 2.0))])
    await store.append(OTHER, [log(0, "x")])
    await store.append(JOB, [log(20, "d"), metrics(20, (3, 3.0))])
    assert [(stored.seq, stored.line.text) for stored in await store.lines(JOB, LineQuery())] == [
        (1, "a"),
        (2, "b"),
        (3, "c"),
        (4, "d"),
    ]
    assert [stored.seq for stored in await store.points(JOB, PointQuery())] == [1, 2, 3]
    assert await store.counts(JOB) == (4, 3)
    assert await store.counts(OTHER) == (1, 0)


async def test_a_batch_that_does_not_begin_at_the_committed_offset_stores_nothing(store: MetricStore) -> None:
    assert await store.append(JOB, [log(0, "a", "b")]) == [20]
    assert await store.append(JOB, [log(0, "a", "b")]) == [20]  # the same again
    assert await store.append(JOB, [log(10, "b", "c")]) == [20]  # overlaps
    assert await store.append(JOB, [log(30, "d")]) == [20]  # leaves a gap
    assert await store.append(OTHER, [log(10, "b")]) == [0]  # an unknown source
    assert await texts(store) == ["a", "b"]


async def test_batches_of_one_request_may_follow_each_other(store: MetricStore) -> None:
    assert await store.append(JOB, [log(0, "a"), log(10, "b"), log(10, "twice"), log(20, "c")]) == [10, 20, 20, 30]
    assert await texts(store) == ["a", "b", "c"]


async def test_bytes_without_lines_move_the_offset(store: MetricStore) -> None:
    assert await store.append(JOB, [Batch(OUT, 0, 500)]) == [500]
    assert await store.append(JOB, [log(500, "a")]) == [510]


async def test_each_process_file_and_generation_is_a_source_of_its_own(store: MetricStore) -> None:
    sources = [
        OUT,
        replace(OUT, attempt=2),
        replace(OUT, rank=1),
        replace(OUT, run=2),
        replace(OUT, source="stderr"),
        replace(OUT, generation=1),
    ]
    assert await store.append(JOB, [log(0, "a", source=source) for source in sources]) == [10] * 6
    assert [stored.source for stored in await store.lines(JOB, LineQuery())] == sources


async def test_committed_returns_offsets_and_ends_of_a_learner_s_sources(store: MetricStore) -> None:
    await store.append(JOB, [log(0, "a", final=True), metrics(0, (1, 1.0)), log(0, "b", source=replace(OUT, rank=1))])
    assert await store.committed(JOB, 1, 0) == [SourceState(OUT, 10, True), SourceState(METRICS, 10, False)]
    assert await store.committed(JOB, 2, 0) == []


async def test_nothing_is_stored_after_the_end_of_a_source(store: MetricStore) -> None:
    await store.append(JOB, [log(0, "a")])
    assert await store.append(JOB, [Batch(OUT, 10, 10, final=True)]) == [10]
    assert await store.append(JOB, [Batch(OUT, 10, 10, final=True)]) == [10]
    assert await store.append(JOB, [log(10, "b")]) == [10]
    assert await texts(store) == ["a"]
    assert (await store.committed(JOB, 1, 0))[0].final


@pytest.mark.parametrize(
    "bad",
    [
        Batch(OUT, 10, 5),
        Batch(OUT, -1, 5),
        Batch(OUT, 0, 2**63),
        Batch(OUT, 0, 0, [LogLine(0, 1, "no bytes")]),
        Batch(OUT, 0, 10, [LogLine(10, 1, "beyond the end")]),
        Batch(OUT, 0, 10, (), [Point(-1, 1, "before the start", 1, 1.0)]),
        Batch(OUT, 0, 10, (), [Point(0, 1, "step", 2**63, 1.0)]),
        Batch(OUT, 0, 10, [LogLine(0, 1, "lone surrogate \ud800")]),
        Batch(OUT, 0, 10, (), [Point(0, 1, "lone surrogate \ud800", 1, 1.0)]),
        Batch(OUT, 0, 10, (), [Point(0, 1, "name", 1, 1.0, {"lone surrogate": "\ud800"})]),
    ],
)
async def test_an_invalid_batch_is_refused_without_effect_on_other_requests(store: MetricStore, bad: Batch) -> None:
    other = log(0, "fine", source=replace(OUT, rank=1))
    refused, answered = await asyncio.gather(
        store.append(JOB, [log(0, "same request"), bad]), store.append(JOB, [other]), return_exceptions=True
    )
    assert isinstance(refused, InvalidRequest)
    assert answered == [10]
    assert await texts(store) == ["fine"]


async def test_an_invalid_job_id_is_refused(store: MetricStore) -> None:
    for job_id in ("", "../j1", ".forgotten", "j/1", "J1", "j" * 64):
        with pytest.raises(InvalidRequest):
            await store.append(job_id, [log(0, "a")])
        with pytest.raises(InvalidRequest):
            await store.lines(job_id, LineQuery())
        with pytest.raises(InvalidRequest):
            await store.delete(job_id)


async def test_each_field_of_a_line_query_filters(store: MetricStore) -> None:
    for attempt in (1, 2):
        for rank, role in ((0, "chief"), (1, "worker")):
            for stream in ("stdout", "stderr"):
                source = SourceId(attempt, role, rank, 1, stream)
                named = [f"{attempt} {role} {stream} {at}" for at in range(3)]
                await store.append(JOB, [log(0, *named, source=source, time_ms=attempt * 1000)])
    assert len(await texts(store)) == 24
    assert await texts(store, LineQuery(rank=1, attempt=2, stream="stderr")) == [
        "2 worker stderr 0",
        "2 worker stderr 1",
        "2 worker stderr 2",
    ]
    assert len(await texts(store, LineQuery(role="chief"))) == 12
    assert len(await texts(store, LineQuery(rank=7))) == 0
    assert len(await texts(store, LineQuery(since_ms=2001))) == 8
    assert len(await texts(store, LineQuery(since_ms=1001, until_ms=2000))) == 12
    assert await texts(store, LineQuery(after_seq=2, before_seq=5)) == ["1 chief stdout 2", "1 chief stderr 0"]
    assert await texts(store, LineQuery(search=r"^2 .*err [12]$", tail=3)) == [
        "2 chief stderr 2",
        "2 worker stderr 1",
        "2 worker stderr 2",
    ]


async def test_pages_follow_each_other_by_sequence_number(store: MetricStore) -> None:
    wanted = [f"line {at}" for at in range(95)]
    for at in range(0, 95, 5):
        await store.append(JOB, [log(at * WIDTH, *wanted[at : at + 5])])
    collected: list[str] = []
    after = 0
    while page := await store.lines(JOB, LineQuery(after_seq=after), limit=7):
        collected += [stored.line.text for stored in page]
        after = page[-1].seq
    assert collected == wanted


async def test_a_tail_is_the_last_matching_lines_and_pages_begin_at_its_start(store: MetricStore) -> None:
    for at in range(300):
        await store.append(JOB, [log(at * WIDTH, f"{'odd' if at % 2 else 'even'} {at}")])
    assert await texts(store, LineQuery(tail=2)) == ["even 298", "odd 299"]
    assert await texts(store, LineQuery(tail=2, search="even")) == ["even 296", "even 298"]
    assert await texts(store, LineQuery(tail=100), limit=2) == ["even 200", "odd 201"]
    assert await texts(store, LineQuery(tail=0)) == []
    assert len(await texts(store, LineQuery(tail=10_000))) == 300
    assert await texts(store, LineQuery(tail=5, after_seq=298)) == ["even 298", "odd 299"]
    assert await texts(store, LineQuery(tail=2, before_seq=3)) == ["even 0", "odd 1"]


async def test_a_pattern_that_does_not_compile_is_refused(store: MetricStore) -> None:
    for search in ("(", "(?=look)", r"(a)\1", "a{1000}{1000}"):
        with pytest.raises(InvalidRequest, match="pattern"):
            await store.lines(JOB, LineQuery(search=search))


async def test_a_pathological_pattern_takes_linear_time(store: MetricStore) -> None:
    await store.append(JOB, [Batch(OUT, 0, 20_000, [LogLine(0, 1, "a" * 16_384 + "b")])])
    async with asyncio.timeout(HANG_S):
        assert await texts(store, LineQuery(search=r"^(a+)+$")) == []


async def test_points_are_read_as_reported_by_sequence_number(store: MetricStore) -> None:
    rank1 = replace(METRICS, rank=1)
    await store.append(JOB, [metrics(0, (1, 0.9), (2, 0.8), (1, 0.7)), metrics(0, (1, 0.5), name="acc", source=rank1)])
    every = await store.points(JOB, PointQuery())
    assert [(stored.seq, stored.point.name, stored.point.step, stored.point.value) for stored in every] == [
        (1, "loss", 1, 0.9),
        (2, "loss", 2, 0.8),
        (3, "loss", 1, 0.7),
        (4, "acc", 1, 0.5),
    ]
    assert [stored.seq for stored in await store.points(JOB, PointQuery(after_seq=1), limit=2)] == [2, 3]
    assert [stored.seq for stored in await store.points(JOB, PointQuery(names=("acc", "none")))] == [4]
    assert [stored.seq for stored in await store.points(JOB, PointQuery(rank=0, after_seq=2))] == [3]
    assert await store.points(JOB, PointQuery(attempt=2)) == []


async def test_usage_of_the_hardware_is_beside_the_metrics_and_read_by_its_names(store: MetricStore) -> None:
    def usage(start: int, *values: float, rank: int, attempt: int = 1) -> Batch:
        points = [
            Point(start + offset, 5, "system/memory", None, value, {"weft": "usage"})
            for offset, value in enumerate(values)
        ]
        source = replace(METRICS, source="usage", rank=rank, attempt=attempt)
        return Batch(source, start, start + len(values), (), points)

    await store.append(JOB, [usage(0, 3.0, rank=0, attempt=0), metrics(0, (1, 0.5)), usage(0, 7.0, 5.0, rank=0)])
    await store.append(JOB, [usage(0, 4.0, rank=1)])
    assert [stored.point.name for stored in await store.points(JOB, PointQuery())] == ["loss"]
    assert [stored.point.name for stored in await store.series(JOB, PointQuery())] == ["loss"]
    assert list(await store.latest(JOB)) == ["loss"]
    assert [aggregate.name for aggregate in await store.aggregates(JOB)] == ["loss"]
    named = PointQuery(names=("system/memory",), attempt=1)
    assert [stored.point.value for stored in await store.points(JOB, named)] == [7.0, 5.0, 4.0]
    assert [(of.rank, of.last, of.high) for of in await store.usage(JOB)] == [(0, 5.0, 7.0), (1, 4.0, 4.0)]
    assert await store.usage(OTHER) == []
    assert [stored.seq for stored in await store.points(JOB, PointQuery(usage=True))] == [1, 2, 3, 4, 5]


async def test_nan_and_infinities_are_stored(store: MetricStore) -> None:
    await store.append(JOB, [metrics(0, (1, math.nan), (2, math.inf), (3, -math.inf), (4, 5e-324))])
    values = [stored.point.value for stored in await store.points(JOB, PointQuery())]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, 5e-324]
    assert math.isnan((await curve(store))[0][1])


async def test_a_curve_has_the_last_value_of_each_step_then_points_without_step(store: MetricStore) -> None:
    await store.append(JOB, [metrics(0, (2, 0.2), (None, 9.0), (1, 0.1), (2, 0.3), (None, 8.0), (-1, 0.0))])
    assert await curve(store) == [(-1, 0.0), (1, 0.1), (2, 0.3), (None, 9.0), (None, 8.0)]


async def test_curves_are_of_the_newest_attempt_by_default(store: MetricStore) -> None:
    second = replace(METRICS, attempt=2)
    await store.append(JOB, [metrics(0, (1, 0.1), (2, 0.2)), metrics(0, (1, 1.0), source=second)])
    await store.append(JOB, [metrics(20, (3, 0.3))])  # a late point of the first attempt
    assert await curve(store) == [(1, 1.0)]
    assert await curve(store, PointQuery(attempt=1)) == [(1, 0.1), (2, 0.2), (3, 0.3)]


async def test_each_name_context_and_rank_is_a_curve_of_its_own(store: MetricStore) -> None:
    points = [Point(0, 1, "loss", 1, 0.1, {"subset": "val"}), Point(1, 1, "loss", 1, 0.2, {"subset": "train"})]
    await store.append(JOB, [Batch(METRICS, 0, 10, (), points), metrics(0, (1, 0.3), source=replace(METRICS, rank=1))])
    await store.append(JOB, [metrics(10, (1, 0.4), name="acc")])
    curves = [
        (stored.point.name, dict(stored.point.context), stored.source.rank)
        for stored in await store.series(JOB, PointQuery())
    ]
    assert curves == [
        ("acc", {}, 0),
        ("loss", {"subset": "train"}, 0),
        ("loss", {"subset": "val"}, 0),
        ("loss", {}, 1),
    ]
    assert await curve(store, PointQuery(names=("loss",), rank=1)) == [(1, 0.3)]


async def test_the_latest_point_of_each_name(store: MetricStore) -> None:
    await store.append(JOB, [metrics(0, (1, 0.9), (2, 0.8)), metrics(0, (5, 0.5), name="acc", source=OUT)])
    await store.append(JOB, [metrics(0, (1, 0.7), source=replace(METRICS, rank=1))])
    latest = {name: (stored.seq, stored.point.value) for name, stored in (await store.latest(JOB)).items()}
    assert latest == {"acc": (3, 0.5), "loss": (4, 0.7)}


async def test_a_late_learner_cannot_recreate_a_deleted_job(store: MetricStore) -> None:
    await store.append(JOB, [log(0, "a"), metrics(0, (1, 1.0))])
    await store.append(OTHER, [log(0, "other")])
    await store.delete(JOB)
    await store.delete(JOB)
    assert await texts(store) == []
    assert await store.counts(JOB) == (0, 0)
    with pytest.raises(NotFound):
        await store.append(JOB, [log(10, "b")])
    assert await store.counts(OTHER) == (1, 0)
    await store.ping()


# --- loading a job ---------------------------------------------------


async def whole(store: MetricStore, job: str) -> tuple[Extent, Stored, Stored]:
    extent = await store.extent(job)
    lines = await store.lines(job, LineQuery(before_seq=extent.lines + 1), limit=extent.lines + 1)
    return extent, lines, await store.points(job, PointQuery(usage=True), limit=extent.points + 1)


async def parts(*given: Stored) -> AsyncGenerator[Stored]:
    for part in given:
        yield part


async def a_job(store: MetricStore, job: str) -> None:
    """Two attempts and four sources, of which one has ended and one has both lines and points. Usage comes first."""
    again = replace(OUT, attempt=2)
    usage = Point(0, 1000, "system/memory", None, 2.0**30, {"weft": "usage"})
    await store.append(job, [Batch(replace(METRICS, source="usage"), 0, 1, (), [usage])])
    await store.append(job, [log(0, "a", "b"), metrics(0, (1, 0.5), (2, float("nan")))])
    await store.append(job, [log(0, "c", source=again), log(20, "d", final=True)])
    point = Point(15, 1001, "acc", None, float("inf"), {"subset": "val"})
    await store.append(job, [Batch(again, 10, 40, [LogLine(10, 1002, "e", partial=True)], [point])])


async def test_a_loaded_job_is_equal_and_accepts_further_appends(store: MetricStore) -> None:
    assert await store.extent(JOB) == Extent(0, 0, [])
    await a_job(store, JOB)
    extent, lines, points = await whole(store, JOB)
    assert (extent.lines, extent.points, len(extent.sources)) == (5, 4, 4)
    await store.load(OTHER, extent.sources, parts(lines[:3], lines[3:], points[:1], points[1:]))
    assert repr(await whole(store, OTHER)) == repr((extent, lines, points))  # repr, because NaN is not equal to itself
    for query in (PointQuery(), PointQuery(attempt=1)):
        assert repr(await store.series(OTHER, query)) == repr(await store.series(JOB, query))
    assert repr(await store.latest(OTHER)) == repr(await store.latest(JOB))
    assert await store.append(OTHER, [log(0, "again"), log(20, "late"), metrics(20, (3, 0.25))]) == [30, 30, 30]
    assert await store.counts(OTHER) == (5, 5)


async def test_a_load_replaces_a_job_and_restores_a_deleted_one(store: MetricStore) -> None:
    await a_job(store, JOB)
    extent, lines, points = await whole(store, JOB)
    await store.append(OTHER, [log(0, *"xyzuvw")])
    await store.load(OTHER, extent.sources, parts(lines, points))
    assert await store.counts(OTHER) == (5, 4)
    await store.delete(OTHER)
    await store.load(OTHER, extent.sources, parts(lines, points))
    assert await texts(store) == [stored.line.text for stored in await store.lines(OTHER, LineQuery())]


async def test_a_failed_load_stores_nothing(store: MetricStore) -> None:
    await a_job(store, JOB)
    extent, lines, points = await whole(store, JOB)
    await store.append(OTHER, [log(0, "before")])
    for wrong in (parts(lines[:2], lines[3:]), parts(points[1:]), parts(lines, lines)):
        with pytest.raises(InvalidRequest):
            await store.load(OTHER, extent.sources, wrong)
    with pytest.raises(InvalidRequest):
        await store.load(OTHER, extent.sources[:1], parts(lines))
    assert [stored.line.text for stored in await store.lines(OTHER, LineQuery())] == ["before"]


async def test_a_reader_beside_the_writer_reads_and_changes_nothing(tmp_path: Path) -> None:
    writing = await SqliteMetricStore.open(tmp_path / "metrics")
    reading = SqliteMetricStore.beside(tmp_path / "metrics")
    try:
        assert await reading.extent(JOB) == Extent(0, 0, [])
        for times in range(1, 4):
            await writing.append(JOB, [log(20 * (times - 1), "a", "b")])
            assert await reading.counts(JOB) == (2 * times, 0)
            assert len(await texts(reading)) == 2 * times
        with pytest.raises(Unavailable):
            await reading.append(JOB, [log(60, "c")])
        with pytest.raises(Unavailable):
            await reading.delete(JOB)
        with pytest.raises(Unavailable):
            await reading.load(JOB, [], parts())
        await reading.close()
        await writing.delete(JOB)
        reading = SqliteMetricStore.beside(tmp_path / "metrics")
        assert await reading.counts(JOB) == (0, 0)
    finally:
        await reading.close()
        await writing.close()
    assert sorted(path.name for path in (tmp_path / "metrics").iterdir()) == [".forgotten", "lock"]


async def test_readers_get_whole_prefixes_during_concurrent_appends(store: MetricStore) -> None:
    async def learner(rank: int) -> None:
        for at in range(20):
            await store.append(JOB, [log(at * WIDTH, f"{rank}:{at}", source=replace(OUT, rank=rank))])

    async def reader() -> None:
        while (await store.counts(JOB))[0] < 200:
            seqs = [stored.seq for stored in await store.lines(JOB, LineQuery())]
            assert seqs == list(range(1, len(seqs) + 1))

    await asyncio.gather(reader(), *(learner(rank) for rank in range(10)))
    stored_texts = await texts(store)
    assert sorted(stored_texts) == sorted(f"{rank}:{at}" for rank in range(10) for at in range(20))
    for rank in range(10):
        assert await texts(store, LineQuery(rank=rank)) == [f"{rank}:{at}" for at in range(20)]


CUTS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.booleans()), max_size=25)


@pytest.mark.parametrize("kind", list(KINDS))
@given(tries=st.lists(CUTS, min_size=2, max_size=2))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_line_and_point_is_stored_once_over_any_repetition(
    kind: str, tries: list[list[tuple[int, int, bool]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two files of 12 lines each, sent in any pieces and order, some concurrently; then in order, as a helper does."""
    words = [f"line {at}" for at in range(12)]

    def piece(rank: int, start: int, end: int) -> Batch:
        lines = [LogLine(at * WIDTH, at, words[at]) for at in range(start, end)]
        points = [Point(at * WIDTH, at, "n", at, at) for at in range(start, end)]
        return Batch(replace(OUT, rank=rank), start * WIDTH, end * WIDTH, lines, points)

    async def scenario() -> None:
        store = await KINDS[kind](tmp_path_factory.mktemp("store"))
        for rank, pieces in enumerate(tries):
            waiting: list[asyncio.Task[Sequence[int]]] = []
            for start, end, at_once in pieces:
                waiting.append(asyncio.create_task(store.append(JOB, [piece(rank, min(start, end), max(start, end))])))
                if not at_once:
                    await asyncio.gather(*waiting)
            await asyncio.gather(*waiting)
        for rank in (0, 1):
            states = await store.committed(JOB, 1, rank)
            committed = states[0].committed // WIDTH if states else 0
            while committed < len(words):
                (end,) = await store.append(JOB, [piece(rank, committed, min(committed + 5, len(words)))])
                committed = end // WIDTH
            assert [stored.line.text for stored in await store.lines(JOB, LineQuery(rank=rank))] == words
            assert [stored.point.value for stored in await store.points(JOB, PointQuery(rank=rank))] == list(range(12))
        assert [stored.seq for stored in await store.lines(JOB, LineQuery())] == list(range(1, 25))
        assert [stored.seq for stored in await store.points(JOB, PointQuery())] == list(range(1, 25))
        await store.close()

    asyncio.run(scenario())


WRITER = """
import asyncio, json, sys
from tests.contract.test_metric_store import *

async def main(kind, root):
    store = await KINDS[kind](Path(root))
    states = await store.committed(JOB, 1, 0)
    at = states[0].committed // WIDTH if states else 0
    while True:
        lines = [LogLine(n * WIDTH, n, f"line {n}") for n in range(at, at + 7)]
        points = [Point(n * WIDTH, n, "n", n, n) for n in range(at, at + 7)]
        (end,) = await store.append(JOB, [Batch(OUT, at * WIDTH, (at + 7) * WIDTH, lines, points)])
        at = end // WIDTH
        print(json.dumps(at), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", list(KINDS))
async def test_acknowledged_appends_survive_kill_9_and_are_stored_once(kind: str, tmp_path: Path) -> None:
    acknowledged = 0
    for life in range(4):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, kind, str(tmp_path), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(10 + 13 * life):
            acknowledged = json.loads(await process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        for line in (await process.stdout.read()).splitlines():
            acknowledged = json.loads(line)
        await process.wait()
        store = await KINDS[kind](tmp_path)
        (state,) = await store.committed(JOB, 1, 0)
        count = state.committed // WIDTH
        assert count >= acknowledged
        lines = await store.lines(JOB, LineQuery(), limit=100_000)
        assert [(stored.seq, stored.line.text) for stored in lines] == [(n + 1, f"line {n}") for n in range(count)]
        points = await store.points(JOB, PointQuery(), limit=100_000)
        assert [(stored.seq, stored.point.value) for stored in points] == [(n + 1, n) for n in range(count)]
        assert await store.counts(JOB) == (count, count)
        await store.close()


async def test_searches_that_take_all_their_workers_do_not_delay_other_reads(
    store: MetricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.append(JOB, [log(0, "line")])
    searching, go_on = threading.Semaphore(0), threading.Event()
    read = LineReader.read

    def held(reader: LineReader, limit: int) -> LinePage:
        if reader._matcher.query.search is not None:
            searching.release()
            assert go_on.wait(HANG_S)
        return read(reader, limit)

    monkeypatch.setattr(LineReader, "read", held)
    searches = [asyncio.create_task(store.lines(JOB, LineQuery(search="l"))) for _ in range(20)]
    assert await asyncio.to_thread(searching.acquire, timeout=HANG_S)
    assert await texts(store) == ["line"]
    assert await store.counts(JOB) == (1, 0)
    go_on.set()
    assert [len(lines) for lines in await asyncio.gather(*searches)] == [1] * 20


async def test_the_files_of_a_job_make_the_same_job_in_another_store(store: MetricStore, tmp_path: Path) -> None:
    await store.append(JOB, [log(0, "a", "b"), metrics(0, (1, 1.0), (2, 2.0))])
    await store.append(OTHER, [log(0, "other")])
    assert set(await store.job_ids()) == {JOB, OTHER}
    await store.close()
    store = await SqliteMetricStore.open(tmp_path / "metrics")  # the files of a job that this process has not used
    copy = await SqliteMetricStore.open(tmp_path / "copy")
    await copy.append(JOB, [log(0, "replaced")])
    await copy.load_files(JOB, store.files(JOB))
    assert await texts(copy) == ["a", "b"]
    assert await copy.counts(JOB) == (2, 2)
    assert await copy.append(JOB, [log(20, "c")]) == [30]
    await store.release(JOB)
    await store.release(JOB)
    assert await store.job_ids() == [OTHER]
    assert await texts(store) == []
    with pytest.raises(NotFound):
        await copy.load_files(JOB, store.files(JOB))
    assert await texts(copy) == ["a", "b", "c"], "a second fetch replaces nothing by nothing"
    assert await store.append(JOB, [log(0, "again")]) == [10], "it was not deleted"
    for opened in (store, copy):
        await opened.close()


async def test_files_that_no_job_has_are_not_loaded(store: MetricStore, tmp_path: Path) -> None:
    await store.append(JOB, [log(0, "kept")])

    async def parts(name: str) -> AsyncGenerator[FilePart]:
        yield FilePart("index.sqlite", b"x")
        yield FilePart(name, b"x")

    for name in ("../lock", "shards.json", "lines-1.seg/..", ""):
        with pytest.raises(InvalidRequest):
            await store.load_files(JOB, parts(name))
    assert await texts(store) == ["kept"]
    assert {path.name for path in tmp_path.iterdir()} == {"metrics"}
