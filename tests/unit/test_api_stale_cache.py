"""The job store's last answers: what they say, and how much memory they take."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import pytest

from services.api.packed_jobs import pack, unpack
from services.api.stale_cache import StaleCache, reporting_age
from services.core.domain.errors import Unavailable
from services.core.domain.job import Job, admitted, set_desired
from services.core.domain.status import Desired, Status
from services.core.ports.job_store import JobQuery
from tests.documents import NOW, a_job, at_status
from tests.testbed.set_clock import SetClock

BOUND = 2**20


def large(variables: int) -> Job:
    return a_job(spec={"name": "large", "command": "x", "env": {f"N{n}": str(n) for n in range(variables)}})


async def ask(cache: StaleCache, question: object, jobs: Sequence[Job] | None) -> Sequence[Job]:
    """``jobs``: None: the store is away."""

    async def read() -> Sequence[Job]:
        if jobs is None:
            raise Unavailable("the store is away")
        return jobs

    with reporting_age():
        return await cache.read(question, read)


@pytest.mark.slow
async def test_hundreds_of_different_lists_of_jobs_with_large_specs_do_not_fill_the_memory() -> None:
    cache = StaleCache(SetClock(), most_bytes=BOUND)
    document = large(500)
    tracemalloc.start()
    try:
        for limit in range(150):
            page = [unpack(pack(document) or b"") for _ in range(5)]  # the store makes a document for each read
            await ask(cache, (JobQuery(tenant="acme"), limit), page)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert BOUND / 2 < cache.size <= BOUND
    assert taken < 2 * BOUND  # it would be fifty times this
    assert [job.spec for job in await ask(cache, (JobQuery(tenant="acme"), 149), None)] == [document.spec] * 5


async def test_empty_answers_to_long_questions_are_bounded_as_well() -> None:
    cache = StaleCache(SetClock(), most_bytes=BOUND)
    for number in range(3_000):
        await ask(cache, JobQuery(name=f"{number}" + "x" * 5_000), [])
    assert cache.size <= BOUND
    with pytest.raises(Unavailable):
        await ask(cache, JobQuery(name="0" + "x" * 5_000), None)


async def test_one_tenants_largest_list_does_not_take_the_place_of_other_lists() -> None:
    cache = StaleCache(SetClock(), most_bytes=BOUND)
    small = [a_job()]
    await ask(cache, "other", small)
    await ask(cache, "acme", small)
    await ask(cache, "acme", [large(20_000)])
    with pytest.raises(Unavailable):
        await ask(cache, "acme", None)
    assert await ask(cache, "other", None) == small


async def test_repeated_question_keeps_its_newest_answer_and_is_counted_once() -> None:
    cache = StaleCache(SetClock(), most_bytes=BOUND)
    first, second = a_job(), a_job()
    await ask(cache, "q", [first])
    size = cache.size
    await ask(cache, "q", [second])
    assert cache.size == size
    assert await ask(cache, "q", None) == [second]


async def test_slow_read_does_not_replace_the_answer_of_a_later_one() -> None:
    """While the store was away, jobs were shown in an earlier state than before."""
    clock = SetClock()
    cache = StaleCache(clock, most_bytes=BOUND)
    job = a_job()
    halted = set_desired(job, Desired.HALT, actor="user:ada", now=NOW)

    async def slow() -> Sequence[Job]:
        clock.now += 1
        await ask(cache, "q", [halted])
        return [job]

    assert await cache.read("q", slow) == [job]
    assert await ask(cache, "q", None) == [halted]


async def test_job_with_a_value_that_bytes_cannot_express_is_read_and_not_kept() -> None:
    cache = StaleCache(SetClock(), most_bytes=BOUND)
    for odd in (2**70, "\ud800"):
        job = a_job(extra={"of a newer version": odd})
        assert await ask(cache, "q", [job]) == [job]
        with pytest.raises(Unavailable):
            await ask(cache, "q", None)


def test_packed_job_is_the_same_job() -> None:
    job = admitted(large(3), placement={"worker-0": "n1"}, dispatcher_term=1, now=NOW)
    job = at_status(job, Status.DOWNLOADING, Status.PROCESSING)
    job = replace(
        job, desired=Desired.HALT, summary={"loss": 0.5, "bad": float("inf")}, extra={"new": {"a": [1, None]}}
    )
    assert unpack(pack(job) or b"") == job
