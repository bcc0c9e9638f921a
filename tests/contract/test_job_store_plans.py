"""Every query of the job store seeks in an index: the number of jobs at rest costs it nothing."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import apsw
import pytest
from pymongo import AsyncMongoClient, monitoring

from services.core.adapters.mongo import MongoJobStore
from services.core.adapters.mongo.connection import connect
from services.core.domain.job import Attempt
from services.core.domain.status import Status
from services.core.ports.job_store import DispatcherDoc, JobQuery, JobStore
from tests.documents import NOW, a_job, at_status
from tests.testbed.job_stores import OnSqlite

QUERIES: Final = [
    JobQuery(holding=True, deleted=True),
    JobQuery(live=True, deleted=True),
    JobQuery(holding=True, holder="", deleted=True),
    JobQuery(untrimmed=True, deleted=True),
    JobQuery(stopped=True),
    JobQuery(statuses=(Status.QUEUED,)),
    JobQuery(statuses=(Status.QUEUED, Status.FAILED)),
    JobQuery(),
    JobQuery(deleted=True),
    JobQuery(tenant="acme"),
    JobQuery(tenant="acme", deleted=True),
    JobQuery(tenant="acme", user="ada"),
    JobQuery(tenant="acme", name="digits"),
    JobQuery(tenant="acme", user="ada", name="digits", tag="mnist"),
    JobQuery(tenant="acme", statuses=(Status.QUEUED,)),
    JobQuery(tenant="acme", statuses=(Status.QUEUED, Status.COMPLETED, Status.FAILED)),
    JobQuery(tenant="acme", tag="mnist"),
    JobQuery(tenant="acme", user="ada", statuses=(Status.PENDING, Status.PROCESSING)),
    JobQuery(tenant="acme", name="digits", statuses=(Status.COMPLETED,)),
]
"""Those that services use, and each filter of a tenant's list."""
ADDED: Final = ("live", "change", "code", "to_erase", "stopped", "released")
"""Columns that files of older versions lack."""
ALLOWED: Final = ("SCAN json_each",)
"""The tags of one row."""


async def fill(store: JobStore) -> None:
    for number in range(30):
        ended = at_status(a_job(spec={"name": "digits", "tags": ["mnist"]}), Status.KILLED)
        await store.insert(replace(ended, history_tail=(), deleted=NOW if number % 5 == 0 else None))
        await store.insert(a_job())
        await store.insert(replace(at_status(a_job(), Status.PENDING), attempt=Attempt(number=1)))


async def use_everything(store: JobStore) -> None:
    """Calls each method of the port, and each query with and without its cursor in both orders."""
    job = await store.insert(a_job())
    job = await store.replace(job, replace(job, updated=NOW + 1))
    await store.get(job.id)
    await store.by_idem(job.idem)
    for query, after, newest_first in product(QUERIES, (None, "j5"), (True, False)):
        await store.find(replace(query, after=after), newest_first=newest_first, limit=10)
    for tenant in (None, "acme"):
        await store.count(JobQuery(tenant=tenant))
    await store.unreadable()
    deleted = (await store.to_erase(deleted_until=NOW, limit=1))[0]
    await store.to_erase(deleted_until=NOW, after=deleted)
    assert not await store.names_code("acme", "sha256:ab")
    for since, tenant in product((None, NOW), (None, "acme")):
        page = await store.held(released_since=since, tenant=tenant, limit=10)
        await store.held(released_since=since, tenant=tenant, after=page.after)
    await store.changes((await store.changes(None)).position)
    await store.append_history(job.id, job.tenant, job.history_tail)
    await store.history(job.id, after_seq=1)
    await store.replace_dispatcher(DispatcherDoc(), DispatcherDoc(term=1, holder="lcm"))
    await store.ping()
    await store.delete(job.id)


@pytest.fixture
def statements() -> Generator[set[str]]:
    """SQL of each statement that any connection runs from now on."""
    traced: set[str] = set()

    def trace(connection: apsw.Connection) -> None:
        def add(_: object, statement: str, __: object) -> bool:
            traced.add(statement)
            return True

        connection.exec_trace = add

    apsw.connection_hooks.append(trace)
    yield traced
    apsw.connection_hooks.remove(trace)


async def test_no_query_on_sqlite_reads_a_whole_table_or_sorts(tmp_path: Path, statements: set[str]) -> None:
    world = OnSqlite(tmp_path / "jobs.sqlite")
    store = await world.another()
    await fill(store)
    statements.clear()
    await use_everything(store)
    await world.close()

    reading = {text for text in statements if text.split()[0] in {"SELECT", "UPDATE", "DELETE"} and "weft_" not in text}
    assert len(reading) > len(QUERIES)
    connection = apsw.Connection(str(tmp_path / "jobs.sqlite"))
    for analyzed in (False, True):
        if analyzed:
            connection.execute("ANALYZE")  # an operator may do so: the plans do not change
        for statement in sorted(reading):
            unbound = connection.execute(f"EXPLAIN QUERY PLAN {statement}", (None,) * statement.count("?"))
            steps = [str(row[3]) for row in unbound]
            bad = [
                step
                for step in steps
                if not step.startswith(ALLOWED) and (step.startswith("SCAN") or "TEMP B-TREE" in step)
            ]
            assert not bad, f"{bad} in the plan of {statement}"
    connection.close()


async def test_a_query_of_live_jobs_reads_no_job_at_rest(tmp_path: Path) -> None:
    world = OnSqlite(tmp_path / "jobs.sqlite")
    store = await world.another()
    await fill(store)
    await world.close()
    connection = apsw.Connection(str(tmp_path / "jobs.sqlite"))
    indexed = connection.execute("SELECT live, holds, count(*) FROM jobs GROUP BY live, holds").fetchall()
    connection.close()
    assert indexed == [(0, 0, 30), (1, 0, 30), (1, 1, 30)]


async def test_a_file_of_the_version_before_gets_its_indexes_and_keeps_its_jobs(tmp_path: Path) -> None:
    world = OnSqlite(tmp_path / "jobs.sqlite")
    store = await world.another()
    await fill(store)
    before = await store.find(JobQuery(deleted=True), limit=1000)
    await world.close()
    connection = apsw.Connection(str(tmp_path / "jobs.sqlite"))
    for index in (
        "live",
        "changed",
        "with_tail",
        "of_tenant",
        "by_user",
        "by_name",
        "counted",
        "with_code",
        "to_erase",
        "stopped",
        "released",
    ):
        connection.execute(f"DROP INDEX jobs_{index}")
    for statement in (
        *(f"ALTER TABLE jobs DROP COLUMN {column}" for column in ADDED),
        "DROP TABLE changes",
        "CREATE INDEX jobs_holding ON jobs(holder, id) WHERE holds",
        "CREATE INDEX jobs_untrimmed ON jobs(id) WHERE tail",
    ):
        connection.execute(statement)
    connection.close()

    again = OnSqlite(tmp_path / "jobs.sqlite")
    reopened = await again.another()
    assert await reopened.find(JobQuery(deleted=True), limit=1000) == before
    assert len(await reopened.find(JobQuery(live=True), limit=1000)) == 60
    position = (await reopened.changes(None)).position
    added = await reopened.insert(a_job())
    assert (await reopened.changes(position)).revisions == {added.id: 1}
    await again.close()


# --- MongoDB ------------------------------------------------------------------


@pytest.mark.usefixtures("long_mongo_timeouts")
async def test_documents_without_live_are_found_and_marked_at_the_next_start(mongo_uri: str) -> None:
    store = await MongoJobStore.open(mongo_uri)
    await fill(store)
    async with AsyncMongoClient[dict[str, Any]](mongo_uri) as client:
        jobs = client.get_default_database()["jobs"]
        await jobs.update_many({}, {"$unset": dict.fromkeys(("live", "holds", "tail", "changed"), "")})
        queries = {"live": JobQuery(live=True), "holding": JobQuery(holding=True), "tail": JobQuery(untrimmed=True)}
        counted = {name: len(await store.find(query, limit=1000)) for name, query in queries.items()}
        assert counted == {"live": 60, "holding": 30, "tail": 60}
        again = await MongoJobStore.open(mongo_uri)
        assert await jobs.count_documents({"live": False, "holds": False, "tail": False}) == 30
        assert await jobs.count_documents({"live": None}) == 60
        assert counted == {name: len(await again.find(query, limit=1000)) for name, query in queries.items()}
        await again.close()
    await store.close()


class _Finds(monitoring.CommandListener):
    """The find and aggregate commands of a client."""

    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if event.command_name in {"find", "aggregate", "delete", "update"}:
            ours = ("find", "filter", "sort", "limit", "projection", "aggregate", "pipeline", "cursor", "delete")
            self.commands.append({name: event.command[name] for name in ours if name in event.command})

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


@pytest.fixture
async def finds() -> AsyncGenerator[_Finds]:
    finds = _Finds()
    monitoring.register(finds)
    yield finds
    monitoring._LISTENERS.command_listeners.remove(finds)


@pytest.mark.skipif("WEFT_TEST_MONGO_URI" not in os.environ, reason="the stand-in explains no plans: docs/limits.md")
@pytest.mark.usefixtures("long_mongo_timeouts")
async def test_no_query_on_mongodb_reads_a_whole_collection_or_sorts(mongo_uri: str, finds: _Finds) -> None:
    store = await MongoJobStore.on(connect(mongo_uri))
    await fill(store)
    finds.commands.clear()
    await use_everything(store)
    await store.close()
    async with AsyncMongoClient[dict[str, Any]](mongo_uri) as client:
        for command in [command for command in finds.commands if "find" in command and "filter" in command]:
            explained = await client.get_default_database().command("explain", command)
            plan = str(explained["queryPlanner"]["winningPlan"])
            assert "COLLSCAN" not in plan, command
            assert "'SORT'" not in plan, command
