"""Contract of every JobStore: which jobs held hardware, read from an index and without the rest of their documents."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.core.domain.codec import dump
from services.core.domain.held_time import HeldJob, HeldPeriod
from services.core.domain.job import SCHEMA, Job, admitted, moved, released
from services.core.domain.status import Status
from services.core.ports.job_store import HeldPage, JobStore
from tests.documents import NOW, a_job
from tests.testbed.job_stores import OnSqlite, World

SPEC: dict[str, Any] = {
    "name": "digits",
    "command": "true",
    "roles": {"worker": {"count": 2}, "chief": {"count": 1, "gpus": 0}},
    "resources": {"gpus": 0.5, "cpus": 3},
}


NESTED: Any = json.loads("[" * 80 + "]" * 80)
"""As deep as every store holds it."""


@pytest.fixture
async def store(world: World) -> JobStore:
    return await world.another()


def running(job: Job, *, at: int = NOW) -> Job:
    return admitted(job, placement={"worker-0": "n1"}, dispatcher_term=job.dispatcher_term + 1, now=at)


async def holding(store: JobStore, *, at: int = NOW, **fields: Any) -> Job:
    """A job that was admitted and holds its hardware."""
    job = await store.insert(a_job(spec=SPEC, **fields))
    return await store.replace(job, running(job, at=at))


async def ended(store: JobStore, *, at: int, to: Status = Status.KILLED, **fields: Any) -> Job:
    """A job that has given back its hardware at a time."""
    job = await holding(store, **fields)
    return await store.replace(job, released(moved(job, to, actor="test", now=at), now=at))


async def all_held(
    store: JobStore, released_since: int | None, *, tenant: str | None = None, limit: int = 2
) -> tuple[list[HeldJob], int]:
    """The jobs of all pages, and how many could not be read."""
    jobs: list[HeldJob] = []
    unreadable, page = 0, HeldPage(jobs=[], unreadable=0, after=(released_since or 0, ""), more=True)
    while page.more:
        page = await store.held(released_since=released_since, tenant=tenant, after=page.after, limit=limit)
        jobs += page.jobs
        unreadable += page.unreadable
    return jobs, unreadable


def ids(jobs: list[HeldJob]) -> list[str]:
    return [job.id for job in jobs]


async def test_jobs_that_gave_back_their_hardware_since_a_time_are_read_in_that_order(store: JobStore) -> None:
    jobs = [await ended(store, at=NOW + after) for after in (50, 10, 40, 20, 40, 60, 30)]
    await holding(store)
    await store.insert(a_job())
    expected = [jobs[index].id for index in (6, 2, 4, 0, 5)]
    for limit in (1, 2, 5, 100):
        assert ids((await all_held(store, NOW + 30, limit=limit))[0]) == expected
    assert ids((await all_held(store, 0))[0]) == [jobs[1].id, jobs[3].id, *expected]
    assert await all_held(store, NOW + 61) == ([], 0)


async def test_jobs_that_hold_hardware_now_are_read_in_the_order_of_their_ids(store: JobStore) -> None:
    jobs = [await holding(store) for _ in range(5)]
    await store.insert(a_job())
    await ended(store, at=NOW + 5)
    # It has ended, and its hardware is not given back yet.
    jobs[1] = await store.replace(jobs[1], moved(jobs[1], Status.FAILED, actor="test", now=NOW))
    held, unreadable = await all_held(store, None)
    assert (ids(held), unreadable) == ([job.id for job in jobs], 0)
    assert [job.released for job in held] == [None] * 5


async def test_a_job_is_read_with_all_that_its_use_is_computed_from(store: JobStore) -> None:
    job = await holding(store, user="grace", summary={"loss": float("nan")})
    job = await store.replace(job, released(moved(job, Status.QUEUED, actor="test", now=NOW + 9), now=NOW + 10))
    first = HeldPeriod(began=NOW, ended=NOW + 10, held=10)
    expected = HeldJob(
        id=job.id,
        tenant="acme",
        user="grace",
        ended=False,
        gpus=1.0,
        cpus=9,
        admitted=NOW,
        released=NOW + 10,
    )
    assert await all_held(store, 0) == ([expected], 0)
    job = await store.replace(job, running(job, at=NOW + 20))
    expected = replace(expected, admitted=NOW + 20, released=None, held_before=(first,))
    assert await all_held(store, None) == ([expected], 0)
    assert await all_held(store, 0) == ([], 0)
    await store.replace(job, released(moved(job, Status.FAILED, actor="test", now=NOW + 30), now=NOW + 31))
    assert await all_held(store, 0) == ([replace(expected, released=NOW + 31, ended=True)], 0)


async def test_jobs_of_other_tenants_are_left_out_and_deleted_jobs_are_not(store: JobStore) -> None:
    ours, theirs = [await ended(store, at=NOW, tenant=tenant) for tenant in ("acme", "umbrella")]
    deleted = await ended(store, at=NOW)
    await store.replace(deleted, replace(deleted, deleted=NOW))
    held, their_held = [await holding(store, tenant=tenant) for tenant in ("acme", "umbrella")]
    assert ids((await all_held(store, NOW, tenant="acme"))[0]) == [ours.id, deleted.id]
    assert ids((await all_held(store, NOW))[0]) == [ours.id, theirs.id, deleted.id]
    assert ids((await all_held(store, None, tenant="umbrella"))[0]) == [their_held.id]
    assert ids((await all_held(store, None))[0]) == [held.id, their_held.id]


async def test_a_document_of_the_version_before_has_its_last_attempt(world: World) -> None:
    store = await world.another()
    job = await ended(store, at=NOW + 7)
    older = {name: value for name, value in dump(job).items() if name != "held_before"}
    await world.plant(job.id, json.dumps(older))
    [[held], _] = await all_held(store, 0)
    assert held.held_ms(since=0, until=NOW * 2, now=NOW * 2) == 7


@pytest.mark.parametrize(
    "damage",
    [
        {"schema": SCHEMA + 1},
        {"tenant": None},
        {"user": 7},
        {"attempt": {"number": 1, "admitted": "yesterday"}},
        {"state": {"status": "DANCING"}},
        {"spec": {"roles": {"worker": {"count": "many"}}}},
        {"held_before": [{"began": -1, "ended": 2, "held": 3}]},
        {"held_before": "always"},
        {"held_before": NESTED},
        {"released": NOW + 1.5},
    ],
    ids=lambda damage: str(damage)[:40],
)
async def test_a_job_that_cannot_be_read_is_counted_and_hides_no_other(world: World, damage: dict[str, Any]) -> None:
    store = await world.another()
    jobs = [await ended(store, at=NOW + number) for number in range(3)]
    await world.plant(jobs[1].id, json.dumps({**dump(jobs[1]), **damage}))
    held, unreadable = await all_held(store, 0, limit=1)
    assert (ids(held), unreadable) == ([jobs[0].id, jobs[2].id], 1)


async def test_a_document_that_is_too_deep_for_python_hides_no_other(tmp_path: Path) -> None:
    """SQLite reads a thousand levels."""
    world = OnSqlite(tmp_path / "jobs.sqlite")
    store = await world.another()
    jobs = [await ended(store, at=NOW) for _ in range(3)]
    text = json.dumps({**dump(jobs[1]), "held_before": 0})
    await world.plant(jobs[1].id, text.replace('"held_before": 0', f'"held_before": {"[" * 990}{"]" * 990}'))
    held, unreadable = await all_held(store, 0, limit=1)
    assert (ids(held), unreadable) == ([jobs[0].id, jobs[2].id], 1)
    await world.close()


@pytest.mark.parametrize("damaged", ["{", "[]", '{"released": "now"}', '{"released": -5}', "null"])
async def test_a_document_without_a_time_of_release_is_in_no_page(world: World, damaged: str) -> None:
    store = await world.another()
    jobs = [await ended(store, at=NOW) for _ in range(3)]
    await world.plant(jobs[1].id, damaged)
    assert ids((await all_held(store, 0))[0]) == [jobs[0].id, jobs[2].id]
