"""Contract of durable JobStores: several processes, kill -9, malformed bytes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.core.domain.errors import (
    InvalidRequest,
)
from services.core.domain.job import Job
from services.core.domain.status import Status
from services.core.ports.job_store import DispatcherDoc, JobQuery
from tests.documents import a_job, at_status
from tests.testbed.job_stores import OnMongo, OnSqlite

ROOT = Path(__file__).parents[2]


def ids(jobs: Sequence[Job]) -> list[str]:
    return [job.id for job in jobs]


WRITER = """
import asyncio, sys
from tests.documents import a_job
from tests.testbed.job_stores import open_store

async def main():
    store = await open_store(sys.argv[1])
    async def replace_all(lane):
        for number in range(10_000):
            job = await store.insert(a_job(id=f"j{lane}-{sys.argv[2]}-{number}"))
            print(job.id, flush=True)
    await asyncio.gather(*[replace_all(lane) for lane in range(4)])

asyncio.run(main())
"""


RACER = """
import asyncio, sys
from dataclasses import replace
from services.core.domain.errors import StaleRevision
from tests.testbed.job_stores import open_store

async def main():
    store = await open_store(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    won = []
    while len(won) < 50:
        job = await store.get("jrace")
        try:
            won.append((await store.replace(job, replace(job, summary={"by": sys.argv[2]}))).rev)
        except StaleRevision:
            pass
    print(*won, flush=True)
    await store.close()

asyncio.run(main())
"""


async def python(code: str, *args: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *args, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def test_two_processes_never_both_win_a_revision(durable: OnSqlite | OnMongo) -> None:
    store = await durable.another()
    await store.insert(a_job(id="jrace"))
    racers = [await python(RACER, durable.place, str(number)) for number in range(2)]
    for racer in racers:
        assert await line(racer) == "ready"
    outputs = await asyncio.gather(*[racer.communicate(b"go\n") for racer in racers])
    won = [int(word) for output, _ in outputs for word in output.split()]
    assert sorted(won) == list(range(2, 102))
    final = await store.get("jrace")
    assert final is not None
    assert final.rev == 101


async def test_acknowledged_writes_survive_kill_9(durable: OnSqlite | OnMongo) -> None:
    acknowledged: list[str] = []
    for kill in range(3):
        writer = await python(WRITER, durable.place, str(kill))
        acknowledged += [await line(writer) for _ in range(40 + 30 * kill)]
        writer.send_signal(signal.SIGKILL)
        rest, _ = await writer.communicate()
        # The last line may be incomplete.
        acknowledged += rest.decode().split("\n")[:-1]
        store = await durable.another()
        there = set(ids(await store.find(JobQuery(), limit=100_000)))
        assert set(acknowledged) <= there
        assert await store.unreadable(limit=100_000) == ([], "")


async def test_jobs_survive_reopening(durable: OnSqlite | OnMongo) -> None:
    store = await durable.another()
    job = await store.insert(a_job())
    await store.append_history(job.id, job.tenant, job.history_tail)
    taken = await store.replace_dispatcher(DispatcherDoc(), DispatcherDoc(term=1, holder="lcm"))
    await store.close()
    again = await durable.another()
    assert await again.find(JobQuery()) == [job]
    assert len(await again.history(job.id)) == 1
    assert await again.dispatcher() == taken


async def test_a_cancelled_caller_does_not_affect_others(durable: OnSqlite | OnMongo) -> None:
    store = await durable.another()
    callers = [asyncio.create_task(store.insert(a_job())) for _ in range(10)]
    await asyncio.sleep(0)
    for caller in callers[::2]:
        caller.cancel()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert [isinstance(outcome, Job) for outcome in outcomes] == [False, True] * 5


async def test_a_summary_with_nan_can_be_stored_and_found(durable: OnSqlite | OnMongo) -> None:
    store = await durable.another()
    job = await store.insert(a_job(summary={"loss": float("nan"), "worst": float("-inf")}))
    (stored,) = await store.find(JobQuery(tenant=job.tenant, statuses=(Status.QUEUED,)))
    assert repr(stored.summary) == repr(job.summary)


async def test_text_that_is_not_unicode_is_refused(durable: OnSqlite | OnMongo) -> None:
    store = await durable.another()
    with pytest.raises(InvalidRequest, match="Unicode"):
        await store.find(JobQuery(tenant="\ud800"))


@pytest.mark.parametrize("text", ["{", "[]", '{"seq": 2}', "[" * 100_000], ids=len)
async def test_a_malformed_event_does_not_affect_others(durable: OnSqlite | OnMongo, text: str) -> None:
    store = await durable.another()
    job = at_status(a_job(), Status.PENDING, Status.DOWNLOADING)
    await store.append_history(job.id, job.tenant, job.history_tail)
    await durable.plant_event(2, text)
    assert [event.seq for event in await store.history(job.id)] == [1, 3]
