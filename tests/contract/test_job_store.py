"""Contract of every JobStore."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.domain.codec import dump
from services.core.domain.errors import (
    Conflict,
    Duplicate,
    IllegalTransition,
    NotFound,
    Quarantined,
    StaleRevision,
)
from services.core.domain.job import PLATFORM, SCHEMA, Attempt, Claim, Event, Job, State, set_desired
from services.core.domain.status import Desired, Status
from services.core.ports.job_store import DispatcherDoc, JobQuery, JobStore, Unreadable
from tests.documents import NOW, a_job, at_status
from tests.testbed.job_stores import OnMongo, OnSqlite, World, make_world

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def store(world: World) -> JobStore:
    return await world.another()


def ids(jobs: Sequence[Job]) -> list[str]:
    return [job.id for job in jobs]


# --- inserting and reading -----------------------------------------------------


async def test_an_inserted_job_is_read_by_all_processes(world: World) -> None:
    ours, theirs = await world.another(), await world.another()
    job = a_job(rev=7, trace="00-1-2-03", summary={"loss": 0.5, "∂": ["x", None, True]})
    stored = await ours.insert(job)
    assert stored == replace(job, rev=1)
    assert await theirs.get(job.id) == stored
    assert await theirs.by_idem(job.idem) == stored


async def test_a_missing_job_is_none(store: JobStore) -> None:
    assert await store.get("jnothing") is None
    assert await store.by_idem("acme/ada/nothing") is None
    assert await store.find(JobQuery()) == []
    assert await store.count(JobQuery()) == {}
    assert await store.history("jnothing") == []


async def test_a_second_job_with_the_same_id_is_refused(store: JobStore) -> None:
    job = await store.insert(a_job())
    with pytest.raises(Duplicate):
        await store.insert(replace(job, idem="acme/ada/another", user="eve"))
    assert await store.get(job.id) == job


async def test_concurrent_inserts_with_one_idempotency_key_create_one_job(world: World) -> None:
    stores = [await world.another(), await world.another()]
    jobs = [a_job(idem="acme/ada/key") for _ in range(16)]
    outcomes = await asyncio.gather(
        *[store.insert(job) for job, store in zip(jobs, itertools.cycle(stores), strict=False)], return_exceptions=True
    )
    (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Job)]
    assert [type(outcome) for outcome in outcomes if outcome is not winner] == [Duplicate] * 15
    assert await stores[0].by_idem("acme/ada/key") == winner
    assert await stores[1].find(JobQuery()) == [winner]


async def test_a_refused_insert_does_not_affect_concurrent_ones(store: JobStore) -> None:
    taken = await store.insert(a_job())
    good = [a_job() for _ in range(20)]
    mixed = [job for pair in zip(good, [replace(taken, idem=f"k{n}") for n in range(20)], strict=True) for job in pair]
    outcomes = await asyncio.gather(*[store.insert(job) for job in mixed], return_exceptions=True)
    assert [isinstance(outcome, Job) for outcome in outcomes] == [True, False] * 20
    assert ids(await store.find(JobQuery(), newest_first=False)) == ids([taken, *good])


# --- replacing -----------------------------------------------------------------


async def test_a_replace_is_visible_to_all_processes_and_raises_the_revision(world: World) -> None:
    ours, theirs = await world.another(), await world.another()
    first = await ours.insert(a_job())
    second = await ours.replace(first, at_status(first, Status.PENDING))
    assert (second.rev, second.status) == (2, Status.PENDING)
    assert await theirs.get(first.id) == second
    third = await theirs.replace(second, replace(second, rev=99, updated=NOW + 1))
    assert third.rev == 3
    assert await ours.get(first.id) == third


async def test_one_of_sixteen_racing_replaces_of_a_revision_wins(world: World) -> None:
    stores = [await world.another() for _ in range(4)]
    prior = await stores[0].insert(a_job())
    for turn in range(5):
        outcomes = await asyncio.gather(
            *[stores[n % 4].replace(prior, replace(prior, summary={"by": n, "turn": turn})) for n in range(16)],
            return_exceptions=True,
        )
        (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Job)]
        assert Counter(type(outcome) for outcome in outcomes) == {Job: 1, StaleRevision: 15}
        assert await stores[turn % 4].get(prior.id) == winner
        prior = winner


async def test_a_stale_revision_changes_nothing(store: JobStore) -> None:
    first = await store.insert(a_job())
    second = await store.replace(first, replace(first, updated=NOW + 1))
    with pytest.raises(StaleRevision):
        await store.replace(first, replace(first, updated=NOW + 2))
    assert await store.get(first.id) == second


async def test_a_missing_job_cannot_be_replaced(store: JobStore) -> None:
    job = a_job()
    with pytest.raises(NotFound):
        await store.replace(job, job)
    assert await store.get(job.id) is None


async def test_the_store_refuses_an_illegal_transition(store: JobStore) -> None:
    ended = await store.insert(a_job())
    ended = await store.replace(ended, at_status(ended, Status.KILLED))
    event = Event(
        seq=3, time=NOW, actor="eve", generation=1, from_status=Status.KILLED, to=Status.QUEUED
    )  # as a faulty caller may write it
    with pytest.raises(IllegalTransition):
        await store.replace(
            ended,
            replace(
                ended,
                state=State(status=Status.QUEUED, since=NOW),
                history_seq=3,
                history_tail=(*ended.history_tail, event),
            ),
        )
    assert await store.get(ended.id) == ended


async def test_the_store_refuses_a_history_with_a_gap(store: JobStore) -> None:
    job = await store.insert(a_job())
    pending = at_status(job, Status.PENDING)
    with pytest.raises(IllegalTransition, match="gap"):
        await store.replace(job, replace(pending, history_seq=3))
    with pytest.raises(IllegalTransition, match="gap"):
        await store.replace(job, replace(pending, history_tail=()))
    assert await store.get(job.id) == job


async def test_unknown_keys_survive_a_replace(world: World) -> None:
    store = await world.another()
    job = await store.insert(a_job())
    document: dict[str, Any] = dump(job)
    document["new"] = {"deep": [1]}
    document["state"]["newer"] = "x"
    document["attempt"]["newest"] = None
    document["history_tail"][0]["by"] = {"ip": "::1"}
    await world.plant(job.id, json.dumps(document))

    read = await store.get(job.id)
    assert read is not None
    written = await store.replace(read, replace(read, updated=NOW + 5))

    again = await (await world.another()).get(job.id)
    assert again == written
    assert dump(again) == {**document, "rev": 2, "updated": NOW + 5}


# --- finding -------------------------------------------------------------------


async def test_each_field_of_a_query_filters(store: JobStore) -> None:
    plain = a_job()
    other_tenant = a_job(tenant="umbrella")
    other_user = a_job(user="eve")
    pending = at_status(a_job(), Status.PENDING)
    holding = replace(pending, id="j0", idem="0", attempt=Attempt(number=1))
    released = replace(pending, id="j1", idem="1", attempt=Attempt(number=1), released=NOW)
    claimed = a_job(guardian=Claim(term=1, holder="g1", nonce="n"))
    named = a_job(spec={"name": "Ünïque", "tags": ["mnist"]})
    tagged = a_job(spec={"name": "x", "tags": ["big", "mnist", 'qu"ote']})
    trimmed_job = a_job(history_tail=())
    deleted = a_job(deleted=NOW)
    ended = at_status(a_job(), Status.KILLED)
    everyone = [
        plain,
        other_tenant,
        other_user,
        pending,
        holding,
        released,
        claimed,
        named,
        tagged,
        trimmed_job,
        deleted,
        ended,
    ]
    for job in everyone:
        await store.insert(job)

    async def ids_of(query: JobQuery) -> set[str]:
        jobs = await store.find(query, limit=1000)
        assert sum((await store.count(query)).values()) == len(jobs)
        return set(ids(jobs))

    def but(*absent: Job) -> set[str]:
        return set(ids(everyone)) - set(ids(absent)) - {deleted.id}

    assert await ids_of(JobQuery()) == but()
    assert await ids_of(JobQuery(deleted=True)) == but() | {deleted.id}
    assert await ids_of(JobQuery(tenant="umbrella")) == {other_tenant.id}
    assert await ids_of(JobQuery(tenant="acme")) == but(other_tenant)
    assert await ids_of(JobQuery(user="eve")) == {other_user.id}
    assert await ids_of(JobQuery(statuses=(Status.PENDING, Status.FAILED))) == set(ids([pending, holding, released]))
    assert await ids_of(JobQuery(statuses=(Status.HALTED,))) == set()
    assert await ids_of(JobQuery(statuses=(Status.PENDING, Status.KILLED), tenant="acme")) == set(
        ids([pending, holding, released, ended])
    )
    assert await ids_of(JobQuery(live=True)) == but(ended)
    assert await ids_of(JobQuery(live=False)) == {ended.id}
    assert await ids_of(JobQuery(live=True, holding=True)) == {holding.id}
    assert await ids_of(JobQuery(holding=True)) == {holding.id}
    assert await ids_of(JobQuery(holding=False)) == but(holding)
    assert await ids_of(JobQuery(holder="g1")) == {claimed.id}
    assert await ids_of(JobQuery(holder="")) == but(claimed)
    assert await ids_of(JobQuery(holder="", holding=True)) == {holding.id}
    assert await ids_of(JobQuery(name="Ünïque")) == {named.id}
    assert await ids_of(JobQuery(tag="mnist")) == {named.id, tagged.id}
    assert await ids_of(JobQuery(tag='qu"ote')) == {tagged.id}
    assert await ids_of(JobQuery(tag="mni")) == set()
    assert await ids_of(JobQuery(untrimmed=True)) == but(trimmed_job)
    assert await ids_of(JobQuery(tenant="acme", user="ada", tag="mnist", name="x")) == {tagged.id}
    assert await ids_of(JobQuery(stopped=True)) == set()


async def test_jobs_that_a_stop_of_the_platform_halted_are_found_among_all_halted_ones(store: JobStore) -> None:
    def halted(by: str, desired: Desired = Desired.HALT) -> Job:
        return replace(at_status(a_job(), Status.HALTED), desired=desired, desired_by=by)

    stopped = [await store.insert(halted(PLATFORM)) for _ in range(3)]
    for other in (
        halted("user:ada"),
        halted(PLATFORM, Desired.RUN),
        replace(halted(PLATFORM), deleted=NOW),
        replace(at_status(a_job(), Status.KILLED), desired=Desired.HALT, desired_by=PLATFORM),
    ):
        await store.insert(other)
    query = JobQuery(stopped=True)
    assert await store.find(query, newest_first=False) == stopped
    assert await store.find(replace(query, after=stopped[1].id)) == stopped[:1]
    queued = await store.replace(stopped[0], set_desired(stopped[0], Desired.RUN, actor=PLATFORM, now=NOW))
    assert not queued.stopped
    assert ids(await store.find(query)) == [stopped[2].id, stopped[1].id]
    assert await store.count(query) == {Status.HALTED: 2}


async def test_a_filter_follows_the_document(store: JobStore) -> None:
    job = await store.insert(a_job())
    job = await store.replace(job, at_status(job, Status.PENDING))
    job = await store.replace(job, replace(job, guardian=Claim(term=1, holder="g1"), attempt=Attempt(number=1)))
    assert await store.find(JobQuery(holder="g1", holding=True, statuses=(Status.PENDING,))) == [job]
    assert await store.count(JobQuery(statuses=(Status.QUEUED,))) == {}
    job = await store.replace(job, replace(job, released=NOW, deleted=NOW, history_tail=()))
    assert await store.find(JobQuery(holding=True)) == []
    assert await store.find(JobQuery(untrimmed=True, deleted=True)) == []
    assert await store.find(JobQuery(deleted=True)) == [job]


@pytest.mark.parametrize("newest_first", [True, False])
async def test_a_list_of_several_statuses_is_in_order_and_pages(store: JobStore, *, newest_first: bool) -> None:
    paths: list[tuple[Status, ...]] = [(), (Status.KILLED,), (Status.PENDING,), (Status.HALTED,)]
    jobs = [await store.insert(at_status(a_job(), *paths[number % 4])) for number in range(24)]
    wanted = [job for job in jobs if job.status in {Status.QUEUED, Status.KILLED, Status.HALTED}]
    query = JobQuery(tenant="acme", statuses=(Status.QUEUED, Status.KILLED, Status.HALTED))
    collected: list[str] = []
    while page := await store.find(query, newest_first=newest_first, limit=5):
        collected += ids(page)
        query = replace(query, after=page[-1].id)
    assert collected == ids(wanted[::-1] if newest_first else wanted)


async def test_each_write_of_a_job_is_reported_once_it_is_visible(world: World) -> None:
    ours, theirs = await world.another(), await world.another()
    old = await ours.insert(a_job())
    start = (await ours.changes(None)).position
    assert (await theirs.changes(start)).revisions.get(old.id, 1) == 1  # an old write may be repeated
    changed, new = await ours.replace(old, replace(old, updated=NOW + 1)), await theirs.insert(a_job())
    reported = await ours.changes(start)
    assert reported.revisions == {changed.id: 2, new.id: 1}
    again = await theirs.replace(changed, replace(changed, updated=NOW + 2))
    assert (await ours.changes(reported.position)).revisions[again.id] == 3


async def test_a_refused_write_hides_no_other_one(world: World) -> None:
    store = await world.another()
    job = await store.insert(a_job())
    position = (await store.changes(None)).position
    outcomes = await asyncio.gather(
        *[store.replace(job, replace(job, updated=NOW + number)) for number in range(1, 9)],
        *[store.insert(a_job(idem="acme/ada/key")) for _ in range(8)],
        return_exceptions=True,
    )
    stored = {outcome.id: outcome.rev for outcome in outcomes if isinstance(outcome, Job)}
    assert len(stored) == 2
    assert (await store.changes(position)).revisions == stored


async def test_jobs_are_counted_by_status(store: JobStore) -> None:
    for path in ((), (), (Status.PENDING,), (Status.HALTED,)):
        await store.insert(at_status(a_job(), *path))
    await store.insert(a_job(tenant="umbrella"))
    counts = await store.count(JobQuery(tenant="acme", after="zzz"))
    assert counts == {Status.QUEUED: 2, Status.PENDING: 1, Status.HALTED: 1}


@pytest.mark.parametrize("newest_first", [True, False])
async def test_pages_form_the_whole_list_during_inserts(store: JobStore, *, newest_first: bool) -> None:
    before = [await store.insert(a_job(at=NOW + 1000)) for _ in range(7)]
    expected = ids(before[::-1] if newest_first else before)
    collected: list[str] = []
    after: str | None = None
    while page := await store.find(JobQuery(after=after), newest_first=newest_first, limit=3):
        assert len(page) <= 3
        collected += ids(page)
        after = page[-1].id
        # Behind the cursor: never collected by this reader, and it moves nobody else's place.
        await store.insert(a_job(at=NOW + 2000 if newest_first else NOW))
    assert collected == expected


# --- documents that cannot be read ---------------------------------------------

MALFORMED = {
    "not JSON": "{",
    "empty": "",
    "a list": "[1, 2]",
    "a number": "7",
    "without its fields": '{"id": "x"}',
    "an unknown status": '{"state": {"status": "BANANA", "since": 1}}',
    "a wrong type": '{"state": 3, "tenant": 5}',
    "nested without end": "[" * 100_000,
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_document_does_not_affect_others(world: World, text: str) -> None:
    store = await world.another()
    first, bad, last = [await store.insert(a_job()) for _ in range(3)]
    await world.plant(bad.id, text)

    assert ids(await store.find(JobQuery(), limit=2)) == [last.id, first.id]
    assert ids(await store.find(JobQuery(deleted=True), newest_first=False, limit=2)) == [first.id, last.id]
    assert await store.count(JobQuery()) == {Status.QUEUED: 2}
    with pytest.raises(Quarantined):
        await store.get(bad.id)
    (unreadable,), further = await store.unreadable()
    assert (unreadable.id, unreadable.newer, further) == (bad.id, False, "")
    assert unreadable.why
    with pytest.raises(Duplicate):
        await store.insert(a_job(idem=bad.idem))
    await store.delete(bad.id)
    assert await store.unreadable(limit=100_000) == ([], "")


async def test_a_document_restored_from_an_old_copy_can_be_changed(durable: OnSqlite | OnMongo) -> None:
    store = await durable.another()
    old = await store.insert(a_job())
    await store.replace(old, replace(old, summary={"lines": 1}))
    await durable.plant(old.id, "{")
    await durable.plant(old.id, json.dumps(dump(old)))
    mended = await store.get(old.id)
    assert mended is not None
    assert mended == replace(old, rev=2)
    assert await store.find(JobQuery()) == [mended]
    assert (await store.replace(mended, replace(mended, summary={"lines": 2}))).rev == 3


async def test_a_document_of_a_newer_schema_is_not_changed(world: World) -> None:
    store = await world.another()
    first, newer, last = [await store.insert(a_job()) for _ in range(3)]
    await world.plant(newer.id, json.dumps({**dump(newer), "schema": SCHEMA + 1, "state": {"status": "QUEUED"}}))

    assert ids(await store.find(JobQuery(), limit=2)) == [last.id, first.id]
    assert await store.count(JobQuery()) == {Status.QUEUED: 2}
    with pytest.raises(Conflict, match="newer"):
        await store.get(newer.id)
    with pytest.raises(Conflict, match="newer"):
        await store.by_idem(newer.idem)
    (unreadable,), _ = await store.unreadable()
    assert (unreadable.id, unreadable.newer, "newer" in unreadable.why) == (newer.id, True, True)


async def test_a_list_reports_the_documents_it_leaves_out(world: World) -> None:
    store = await world.another()
    jobs = [await store.insert(a_job()) for _ in range(5)]
    worse = {**dump(jobs[1]), "generation": "many"}
    await world.plant(jobs[1].id, json.dumps(worse))
    await world.plant(jobs[3].id, json.dumps({**dump(jobs[3]), "schema": SCHEMA + 1}))
    left_out: list[Unreadable] = []
    jobs_found = await store.find(JobQuery(holding=False), newest_first=False, limit=2, left_out=left_out)
    jobs_found = [
        *jobs_found,
        *await store.find(JobQuery(after=jobs_found[-1].id), newest_first=False, left_out=left_out),
    ]
    assert ids(jobs_found) == [jobs[0].id, jobs[2].id, jobs[4].id]
    assert [(bad.id, bad.newer) for bad in left_out] == [(jobs[1].id, False), (jobs[3].id, True)]
    assert left_out[0].document["tenant"] == "acme"


async def test_unreadable_documents_are_listed_in_pages(world: World) -> None:
    store = await world.another()
    jobs = [await store.insert(a_job()) for _ in range(5)]
    for bad in (jobs[0], jobs[3]):
        await world.plant(bad.id, "{}")
    pages, after = [], ""
    while True:
        page, after = await store.unreadable(after=after, limit=2)
        pages.append([bad.id for bad in page])
        if not after:
            break
    assert pages == [[jobs[0].id], [jobs[3].id], []]


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
DAMAGE = st.dictionaries(st.sampled_from(sorted(dump(a_job()))), JSON, min_size=1, max_size=3)


@pytest.mark.parametrize("kind", ["sqlite", "memory", "mongo"])
def test_damaged_documents_do_not_hide_others(kind: str, request: pytest.FixtureRequest) -> None:
    async def check(damages: list[Any]) -> None:
        world = make_world(kind, request)
        store = await world.another()
        sound = [await store.insert(a_job()) for _ in range(2)]
        for damage in damages:
            job = await store.insert(a_job())
            whole: Any = dump(job)
            await world.plant(job.id, json.dumps({**whole, **damage} if isinstance(damage, dict) else damage))
        listed = ids(await store.find(JobQuery(deleted=True)))
        unreadable = {bad.id for bad in (await store.unreadable())[0]}
        await store.count(JobQuery())
        await store.find(JobQuery(tag="x", name="x", holder="x", holding=True))
        await world.close()
        assert set(ids(sound)) <= set(listed)
        assert not set(listed) & unreadable

    @settings(max_examples=15 if kind == "mongo" else 60, deadline=None)
    @given(damages=st.lists(DAMAGE | JSON, min_size=1, max_size=4))
    def holds(damages: list[Any]) -> None:
        asyncio.run(check(damages))

    holds()


# --- history, dispatcher, deletion ---------------------------------------------


async def test_copied_events_are_never_changed(store: JobStore) -> None:
    job = at_status(a_job(), Status.PENDING, Status.DOWNLOADING)
    events = job.history_tail
    await store.append_history(job.id, job.tenant, events[:2])
    await store.append_history(job.id, job.tenant, [replace(events[1], actor="eve"), events[2]])
    await store.append_history(job.id, job.tenant, [])
    assert await store.history(job.id) == list(events)
    assert await store.history(job.id, after_seq=1) == list(events[1:])
    assert await store.history(job.id, limit=2) == list(events[:2])
    assert await store.history("another") == []


async def test_deletion_removes_the_history_and_may_be_repeated(store: JobStore) -> None:
    gone, stays = await store.insert(a_job()), await store.insert(a_job())
    for job in (gone, stays):
        await store.append_history(job.id, job.tenant, job.history_tail)
    await store.delete(gone.id)
    await store.delete(gone.id)
    assert await store.get(gone.id) is None
    assert await store.history(gone.id) == []
    assert await store.find(JobQuery()) == [stays]
    assert len(await store.history(stays.id)) == 1


async def test_one_of_many_racing_dispatchers_takes_over(world: World) -> None:
    stores = [await world.another() for _ in range(4)]
    prior = await stores[0].dispatcher()
    assert prior == DispatcherDoc()
    for turn in range(3):
        outcomes = await asyncio.gather(
            *[
                stores[n % 4].replace_dispatcher(prior, DispatcherDoc(term=prior.term + 1, holder=f"lcm-{n}"))
                for n in range(8)
            ],
            return_exceptions=True,
        )
        (winner,) = [outcome for outcome in outcomes if isinstance(outcome, DispatcherDoc)]
        assert Counter(type(outcome) for outcome in outcomes) == {DispatcherDoc: 1, StaleRevision: 7}
        assert await stores[turn % 4].dispatcher() == winner
        assert (winner.term, winner.rev) == (turn + 1, turn + 1)
        prior = winner


async def test_a_healthy_store_answers_a_ping(store: JobStore) -> None:
    await store.ping()
