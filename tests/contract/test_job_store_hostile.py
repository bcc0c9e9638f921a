"""Hostile texts in jobs, on every JobStore: stored and read back exactly, or refused before anything is written."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.core.domain.held_time import HeldJob
from services.core.domain.job import Event, Job
from services.core.domain.status import Status
from services.core.ports.job_store import JobQuery, JobStore
from tests.contract.hostile import PLAIN, SMALL, TEXTS, VALUES, Refusal, attempt, names
from tests.documents import NOW, a_job
from tests.testbed.job_stores import InMemory, OnMongo, OnSqlite, World


@pytest.fixture(params=["sqlite", "memory", "mongo"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[JobStore]:
    world: World
    if request.param == "mongo":
        request.getfixturevalue("long_mongo_timeouts")
        world = OnMongo(request.getfixturevalue("mongo_uri"))
    else:
        world = InMemory() if request.param == "memory" else OnSqlite(tmp_path / "jobs.sqlite")
    yield await world.another()
    await world.close()


def ids(jobs: Sequence[Job]) -> list[str]:
    return [job.id for job in jobs]


async def held_jobs(store: JobStore, tenant: str) -> Sequence[HeldJob]:
    pages = [await store.held(released_since=since, tenant=tenant) for since in (None, 0)]
    return [job for page in pages for job in page.jobs]


def with_text(place: str, text: str) -> Job:
    """A job that has the text in this place."""
    job = a_job()
    match place:
        case "id" | "idem" | "user" | "tenant" | "trace":
            return replace(job, **dict[str, Any]({place: text}))
        case "name":
            return a_job(spec={"name": text, "command": "x"})
        case "tag":
            return a_job(spec={"name": "digits", "tags": [text]})
        case "key of the spec":
            return a_job(spec={"name": "digits", "env": {text: "x"}})
        case "key of the summary":
            return replace(job, summary={"latest": {text: {"value": 1.5, text: text}}})
        case _:
            return replace(job, state=replace(job.state, message=text))


PLACES = ("id", "idem", "user", "tenant", "trace", "name", "tag", "key of the spec", "key of the summary", "message")


@pytest.mark.parametrize("place", PLACES)
async def test_a_hostile_text_in_a_job_is_stored_exactly_or_refused(store: JobStore, place: str) -> None:
    other = await store.insert(a_job())
    for text in names(huge=place == "message"):
        job = with_text(place, TEXTS[text])
        stored = await attempt(store.insert(job))
        if isinstance(stored, Refusal):
            assert text not in PLAIN
            assert ids(await store.find(JobQuery())) == [other.id]
        else:
            assert stored == replace(job, rev=1)
            assert await store.get(job.id) == stored
            assert await store.by_idem(job.idem) == stored
            tags: Sequence[str | None] = job.spec.get("tags", (None,))
            query = JobQuery(tenant=job.tenant, user=job.user, name=job.spec["name"], tag=tags[0])
            for result in (await attempt(store.find(query)), await attempt(store.count(JobQuery(tenant=job.tenant)))):
                assert text not in PLAIN if isinstance(result, Refusal) else result
            await store.delete(job.id)
            assert await store.get(job.id) is None
        assert await store.get(other.id) == other


async def test_a_hostile_replace_is_stored_exactly_or_changes_nothing(store: JobStore) -> None:
    before = await store.insert(a_job())
    for text, hostile in SMALL.items():
        new = replace(before, summary={hostile: hostile}, updated=NOW + 1)
        stored = await attempt(store.replace(before, new))
        if isinstance(stored, Refusal):
            assert text not in PLAIN
            stored = before
        else:
            assert stored == replace(new, rev=before.rev + 1)
        assert await store.get(before.id) == stored
        before = await store.replace(stored, replace(stored, summary={}))
        assert before.rev == stored.rev + 1


@pytest.mark.parametrize("value", VALUES)
async def test_a_value_that_a_store_may_not_hold_is_stored_exactly_or_refused(store: JobStore, value: str) -> None:
    job = replace(a_job(), summary={"value": VALUES[value]})
    stored = await attempt(store.insert(job))
    if isinstance(stored, Refusal):
        assert await store.find(JobQuery()) == []
    else:
        assert await store.get(job.id) == stored
        assert stored.summary == job.summary
    last = await store.insert(a_job())
    assert await store.get(last.id) == last


async def test_a_hostile_event_is_stored_exactly_or_refused(store: JobStore) -> None:
    for text, hostile in TEXTS.items():
        event = Event(seq=1, time=NOW, actor=hostile, generation=1, from_status=None, to=Status.QUEUED, message=hostile)
        if isinstance(await attempt(store.append_history("j1", "acme", [event])), Refusal):
            assert text not in PLAIN
            assert await store.history("j1") == []
        else:
            assert await store.history("j1") == [event]
        plain = replace(event, seq=2, actor="api", message="")
        await store.append_history("j1", "acme", [plain])
        assert (await store.history("j1"))[-1] == plain
        await store.delete("j1")


async def test_a_hostile_id_or_query_finds_nothing_or_is_refused(store: JobStore) -> None:
    job = await store.insert(a_job())
    for text, hostile in TEXTS.items():
        for call in (
            store.get(hostile),
            store.by_idem(hostile),
            store.find(JobQuery(tenant=hostile)),
            store.find(JobQuery(name=hostile)),
            store.find(JobQuery(tag=hostile)),
            store.find(JobQuery(user=hostile)),
            store.count(JobQuery(tenant=hostile)),
            held_jobs(store, hostile),
            store.history(hostile),
            store.delete(hostile),
        ):
            result = await attempt(call)
            if isinstance(result, Refusal):
                assert text not in PLAIN
            else:
                assert not result
        assert await store.find(JobQuery()) == [job]
