"""The job store on SQLite: full disks, locks, wrong files and unsuitable folders."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from services.core.adapters.sqlite import SqliteJobStore
from services.core.domain.errors import Conflict, Internal, InvalidRequest, NoSpace, Unavailable
from services.core.domain.job import Job
from services.core.ports.job_store import JobQuery
from tests.documents import a_job
from tests.testbed.job_stores import OnSqlite


@pytest.fixture
async def on_sqlite(tmp_path: Path) -> AsyncGenerator[OnSqlite, None]:
    world = OnSqlite(tmp_path / "jobs.sqlite")
    yield world
    await world.close()


def ids(jobs: Sequence[Job]) -> list[str]:
    return [job.id for job in jobs]


async def test_a_full_disk_is_reported_and_changes_nothing(on_sqlite: OnSqlite) -> None:
    store = await on_sqlite.another()
    stored: list[Job] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
        while True:
            batch = [a_job(summary={"much": "x" * 20_000}) for _ in range(8)]
            outcomes = await asyncio.gather(*[store.insert(job) for job in batch], return_exceptions=True)
            stored += [outcome for outcome in outcomes if isinstance(outcome, Job)]
            failed = [outcome for outcome in outcomes if not isinstance(outcome, Job)]
            if failed:
                break
        assert {type(outcome) for outcome in failed} == {NoSpace}
        assert set(ids(await store.find(JobQuery(), limit=1000))) == set(ids(stored))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    stored.append(await store.insert(a_job()))
    await store.close()
    assert set(ids(await (await on_sqlite.another()).find(JobQuery(), limit=1000))) == set(ids(stored))


async def test_a_write_to_a_locked_file_is_unavailable_not_lost(
    on_sqlite: OnSqlite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.core.adapters.sqlite.database._BUSY_MS", 20)
    store = await on_sqlite.another()
    other = apsw.Connection(str(on_sqlite.path))
    other.execute("BEGIN IMMEDIATE")
    outcomes = await asyncio.gather(*[store.insert(a_job()) for _ in range(5)], return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Unavailable}
    assert await store.find(JobQuery()) == []  # readers do not wait for writers
    other.execute("ROLLBACK")
    other.close()
    await store.insert(a_job())


@pytest.fixture
def reads() -> Generator[list[str]]:
    """The transactions of reads that SQLite has begun, in stores that are opened later."""
    begun: list[str] = []

    def count(_: apsw.Cursor, statement: str, __: object) -> bool:
        begun.extend([statement] if statement == "BEGIN" else [])
        return True

    def trace(connection: apsw.Connection) -> None:
        connection.exec_trace = count

    apsw.connection_hooks.append(trace)
    yield begun
    apsw.connection_hooks.remove(trace)


async def read_all(store: SqliteJobStore, job: Job) -> list[object]:
    """What the loops of the services read each second."""
    return [
        await store.get(job.id),
        await store.find(JobQuery(holding=True)),
        await store.find(JobQuery(untrimmed=True)),
        await store.changes(0),
        await store.dispatcher(),
        await store.to_erase(deleted_until=job.created),
    ]


async def test_reads_that_are_repeated_cost_nothing_while_nobody_writes(on_sqlite: OnSqlite, reads: list[str]) -> None:
    store = await on_sqlite.another()
    job = await store.insert(a_job())
    first = await read_all(store, job)
    reads.clear()
    for _ in range(10):
        assert await read_all(store, job) == first
    assert reads == []


async def test_a_repeated_read_sees_what_any_process_has_committed(on_sqlite: OnSqlite) -> None:
    store, other = await on_sqlite.another(), await on_sqlite.another()
    job = await store.insert(a_job())
    for writer in (store, other, store):
        await read_all(store, job)
        job = await writer.replace(job, replace(job, summary={"writes": job.rev}))
        assert await store.get(job.id) == await other.get(job.id) == job
        assert (await store.changes(0)).revisions == {job.id: job.rev}


async def test_a_write_during_a_read_is_seen_by_the_next_one(on_sqlite: OnSqlite) -> None:
    store = await on_sqlite.another()
    job = await store.insert(a_job())
    for number in range(50):
        reading = asyncio.create_task(store.get(job.id))
        job = await store.replace(job, replace(job, summary={"number": number}))
        assert await store.get(job.id) == job
        await reading


async def test_a_long_list_is_not_kept_in_memory(on_sqlite: OnSqlite, reads: list[str]) -> None:
    store = await on_sqlite.another()
    for _ in range(60):
        await store.insert(a_job())
    await store.find(JobQuery(), limit=60)
    reads.clear()
    await store.find(JobQuery(), limit=60)
    assert reads == ["BEGIN"]


async def test_closing_runs_earlier_calls_and_refuses_later_ones(on_sqlite: OnSqlite) -> None:
    store = await on_sqlite.another()
    inserts = [asyncio.create_task(store.insert(a_job())) for _ in range(300)]
    await asyncio.sleep(0)
    await store.close()
    await store.close()
    assert len(await asyncio.gather(*inserts)) == 300
    with pytest.raises(Unavailable, match="closed"):
        await store.insert(a_job())
    with pytest.raises(Unavailable, match="closed"):
        await store.ping()


async def test_a_file_of_a_newer_weft_is_refused(on_sqlite: OnSqlite) -> None:
    await (await on_sqlite.another()).close()
    connection = apsw.Connection(str(on_sqlite.path))
    connection.execute("UPDATE weft_schema SET version = version + 1")
    connection.close()
    with pytest.raises(Conflict, match="newer"):
        await on_sqlite.another()


async def test_a_file_that_is_no_database_is_refused_and_not_changed(on_sqlite: OnSqlite) -> None:
    on_sqlite.path.write_bytes(b"precious " * 1000)
    with pytest.raises(Internal, match="not a sound SQLite database"):
        await on_sqlite.another()
    assert on_sqlite.path.read_bytes() == b"precious " * 1000


async def test_a_path_that_cannot_be_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable):
        await SqliteJobStore.open(tmp_path / "file" / "jobs.sqlite")
    with pytest.raises(Unavailable):
        await SqliteJobStore.open(tmp_path)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "smb3", "fuse.sshfs"])
async def test_a_network_file_system_is_refused_before_anything_is_created(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    folder = tmp_path / "the share"
    folder.mkdir()
    escaped = str(folder).replace(" ", "\\040")
    mounts.write_text(f"1 0 8:1 / / rw - ext4 /dev/x rw\n2 1 0:9 / {escaped} rw shared:1 - {kind} srv:/x rw\nodd\n")
    with pytest.raises(InvalidRequest, match=f"network file system \\({kind}\\)"):
        await SqliteJobStore.open(folder / "jobs.sqlite", mounts=mounts)
    assert list(folder.iterdir()) == []


async def test_a_folder_on_an_unknown_file_system_is_accepted(tmp_path: Path) -> None:
    store = await SqliteJobStore.open(tmp_path / "jobs.sqlite", mounts=tmp_path / "nothing")
    await store.ping()
    (tmp_path / "jobs.sqlite").unlink()
    with pytest.raises(Unavailable, match="missing"):
        await store.ping()
    await store.close()


async def test_only_the_owner_can_read_the_file(on_sqlite: OnSqlite) -> None:
    await (await on_sqlite.another()).insert(a_job())
    files = list(on_sqlite.path.parent.glob("jobs.sqlite*"))
    assert len(files) == 3
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
