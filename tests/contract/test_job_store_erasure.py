"""Contract of every JobStore: erasing the data of deleted jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from services.core.domain.codec import dump
from services.core.domain.errors import (
    IllegalTransition,
)
from services.core.domain.job import SCHEMA, Job
from services.core.domain.status import Status
from services.core.ports.job_store import JobStore
from tests.documents import NOW, a_job, at_status
from tests.testbed.job_stores import World


@pytest.fixture
async def store(world: World) -> JobStore:
    return await world.another()


def ids(jobs: Sequence[Job]) -> list[str]:
    return [job.id for job in jobs]


async def test_deleted_jobs_are_erased_in_the_order_of_their_deletion(world: World) -> None:
    store = await world.another()
    jobs = [await store.insert(at_status(a_job(), Status.KILLED)) for _ in range(6)]
    times = [NOW + 5, None, NOW + 1, NOW + 3, NOW + 3, NOW + 9]
    for index, time in enumerate(times):
        jobs[index] = await store.replace(jobs[index], replace(jobs[index], deleted=time))
    expected = [jobs[index].id for index in (2, 3, 4, 0)]
    collected: list[Job] = []
    while page := await store.to_erase(deleted_until=NOW + 8, after=collected[-1] if collected else None, limit=1):
        collected += page
    assert ids(collected) == expected
    assert ids(await store.to_erase(deleted_until=NOW + 8, limit=3)) == expected[:3]
    done = await store.replace(collected[0], replace(collected[0], erased=NOW + 10))
    assert ids(await store.to_erase(deleted_until=NOW + 8)) == expected[1:]
    assert await store.get(done.id) == done
    await world.plant(expected[1], "{")
    assert ids(await store.to_erase(deleted_until=NOW + 8, limit=1)) == [expected[2]]


async def test_code_is_named_until_the_last_job_that_names_it_is_erased(store: JobStore) -> None:
    digest = "sha256:" + "ab" * 32
    first, second = [await store.insert(at_status(a_job(code_digest=digest), Status.KILLED)) for _ in range(2)]
    await store.insert(a_job(tenant="umbrella", code_digest="sha256:other"))
    assert await store.names_code("acme", digest)
    assert not await store.names_code("umbrella", digest)
    assert not await store.names_code("acme", "sha256:other")
    first = await store.replace(first, replace(first, deleted=NOW, erased=NOW))
    assert await store.names_code("acme", digest)
    second = await store.replace(second, replace(second, deleted=NOW))
    assert await store.names_code("acme", digest)
    await store.replace(second, replace(second, erased=NOW))
    assert not await store.names_code("acme", digest)


@pytest.mark.parametrize("text", ["{", "7", "{}", '{"tenant": null, "code_digest": 3}'])
async def test_code_counts_as_named_while_a_document_does_not_show_its_tenant(world: World, text: str) -> None:
    store = await world.another()
    job = await store.insert(a_job())
    assert not await store.names_code("acme", "sha256:ab")
    await world.plant(job.id, text)
    assert await store.names_code("acme", "sha256:ab")


async def test_code_of_a_job_of_a_newer_version_is_named(world: World) -> None:
    store = await world.another()
    job = await store.insert(a_job(code_digest="sha256:ab"))
    await world.plant(job.id, json.dumps({**dump(job), "schema": SCHEMA + 1, "counters": "many"}))
    assert await store.names_code("acme", "sha256:ab")


async def test_a_deletion_cannot_be_undone(store: JobStore) -> None:
    job = await store.insert(at_status(a_job(), Status.HALTED))
    with pytest.raises(IllegalTransition):
        await store.replace(job, replace(job, erased=NOW))
    job = await store.replace(job, replace(job, deleted=NOW))
    with pytest.raises(IllegalTransition):
        await store.replace(job, replace(job, deleted=None))
    assert await store.get(job.id) == job
