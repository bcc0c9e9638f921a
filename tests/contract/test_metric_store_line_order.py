"""Log lines in order of time, and searches that stop at their time limit, of every MetricStore."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.core.adapters.sqlite.metrics import SqliteMetricStore
from services.core.domain.errors import TooLarge
from services.core.ports.metric_store import Batch, LinePage, LineQuery, LogLine, MetricStore, StoredLine
from tests.testbed.metric_batches import JOB, OUT, WIDTH, log

Opener = Callable[[Path, float], Awaitable[MetricStore]]
KINDS: dict[str, Opener] = {"sqlite": lambda root, search_s: SqliteMetricStore.open(root, search_s=search_s)}


@pytest.fixture(params=list(KINDS))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[MetricStore]:
    opened = await KINDS[request.param](tmp_path / "metrics", 10.0)
    yield opened
    await opened.close()


@pytest.fixture(params=list(KINDS))
async def hasty(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[MetricStore]:
    """A store in which the time for every query is over at once."""
    opened = await KINDS[request.param](tmp_path / "hasty", 0.0)
    yield opened
    await opened.close()


def merged(lines: Sequence[StoredLine]) -> list[int]:
    return [stored.seq for stored in sorted(lines, key=lambda stored: (stored.line.time_ms, stored.seq))]


def seqs(lines: Sequence[StoredLine]) -> list[int]:
    return [stored.seq for stored in lines]


async def fill(store: MetricStore, batches: Sequence[tuple[int, Sequence[int]]]) -> None:
    """Stores batches of (rank, times of its lines), one after another."""
    offsets: dict[int, int] = {}
    for number, (rank, times) in enumerate(batches):
        start = offsets.get(rank, 0)
        lines = [LogLine(start + at * WIDTH, time, f"{number} {rank} {at}") for at, time in enumerate(times)]
        offsets[rank] = start + len(times) * WIDTH
        await store.append(JOB, [Batch(replace(OUT, rank=rank), start, offsets[rank], lines)])


async def test_lines_of_several_learners_are_merged_by_time(store: MetricStore) -> None:
    await fill(store, [(0, (10, 20, 50)), (1, (5, 20, 40)), (0, (60,)), (1, (55, 70))])
    lines = await store.lines(JOB, LineQuery(by_time=True))
    assert [stored.line.time_ms for stored in lines] == [5, 10, 20, 20, 40, 50, 55, 60, 70]
    assert seqs(lines) == [4, 1, 2, 5, 6, 3, 8, 7, 9]
    assert seqs(await store.lines(JOB, LineQuery(by_time=True, tail=3))) == [8, 7, 9]
    assert seqs(await store.lines(JOB, LineQuery(by_time=True, tail=3, before_seq=8))) == [5, 6, 3]
    assert seqs(await store.lines(JOB, LineQuery(by_time=True, after_seq=3))) == [8, 7, 9]
    assert seqs(await store.lines(JOB, LineQuery(by_time=True, rank=1, since_ms=20, until_ms=60))) == [5, 6, 8]
    assert seqs(await store.lines(JOB, LineQuery(by_time=True, after_seq=10))) == []
    assert seqs(await store.lines(JOB, LineQuery(by_time=True, tail=0))) == []


times = st.lists(st.integers(0, 40), min_size=1, max_size=6)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.tuples(st.integers(0, 2), times), min_size=1, max_size=25),
    rank=st.sampled_from([None, 0, 1]),
    size=st.integers(1, 7),
)
@pytest.mark.parametrize("kind", list(KINDS))
async def test_pages_in_order_of_time_are_complete_also_where_clocks_were_set_back(
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[tuple[int, list[int]]],
    rank: int | None,
    size: int,
) -> None:
    """Forwards and backwards, also if each query stops for its time."""
    for search_s in (10.0, 0.0):
        store = await KINDS[kind](tmp_path_factory.mktemp("pages"), search_s)
        await fill(store, batches)
        stored: list[StoredLine] = []
        while lines := await store.lines(JOB, LineQuery(after_seq=len(stored)), limit=1):
            stored += lines
        wanted = merged([line for line in stored if rank is None or line.source.rank == rank])
        query = LineQuery(by_time=True, rank=rank)
        assert await forwards(store, query, size) == wanted
        assert await backwards(store, query, size) == wanted
        await store.close()


async def forwards(store: MetricStore, query: LineQuery, size: int) -> list[int]:
    """The seqs of all pages, each continued where the one before ended or stopped."""
    out: list[int] = []
    after = 0
    while True:
        page = await store.line_page(JOB, replace(query, after_seq=after), limit=size)
        out += seqs(page.lines)
        if page.stopped_at is None and len(page.lines) < size:
            return out
        assert page.stopped_at != after
        after = page.lines[-1].seq if page.stopped_at is None else page.stopped_at


async def backwards(store: MetricStore, query: LineQuery, size: int) -> list[int]:
    out: list[int] = []
    before: int | None = None
    while True:
        page = await store.line_page(JOB, replace(query, before_seq=before, tail=size), limit=size)
        out = seqs(page.lines) + out
        if page.stopped_at is None and len(page.lines) < size:
            return out
        assert page.stopped_at is None or page.stopped_at != before
        before = page.lines[0].seq if page.stopped_at is None else page.stopped_at


async def test_a_search_that_reaches_its_time_limit_returns_its_lines_and_continues(hasty: MetricStore) -> None:
    """It was refused before: "the search takes too long"."""
    for at in range(400):
        await hasty.append(JOB, [log(at * WIDTH, f"{'rare' if at % 90 == 0 else 'common'} {at}", time_ms=at)])
    for by_time in (False, True):
        query = LineQuery(search="rare", by_time=by_time)
        first: LinePage = await hasty.line_page(JOB, query)
        assert first.stopped_at is not None
        assert first.stopped_at < 400
        assert await forwards(hasty, query, 100) == [1, 91, 181, 271, 361]
        assert await backwards(hasty, query, 100) == [1, 91, 181, 271, 361]
        with pytest.raises(TooLarge):
            await hasty.lines(JOB, query)
