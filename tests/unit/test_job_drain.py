"""After a stop of the platform its start queues the jobs again that the stop halted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from services.core.bootstrap import wiring
from services.core.domain.job import PLATFORM, Attempt, Job, moved, released
from services.core.domain.status import Desired, Status
from services.core.runtime.home import Home
from services.core.runtime.settings import Settings
from services.local.commands import Platform
from services.local.job_drain import queue_again
from services.local.layout import prepare
from tests.documents import NOW, a_job, at_status
from tests.waiting import until


def halted(by: str) -> Job:
    return replace(at_status(a_job(), Status.HALTED), desired=Desired.HALT, desired_by=by)


async def test_a_start_reads_only_jobs_that_the_stop_of_the_platform_halted_or_that_hold_hardware(
    tmp_path: Path,
) -> None:
    settings = Settings(home=tmp_path)
    store = await wiring.job_store(settings)
    for _ in range(20):
        await store.insert(halted("user:ada"))
    stopped = [await store.insert(halted(PLATFORM)) for _ in range(2)]
    pages: list[str] = []

    def trace(connection: apsw.Connection) -> None:
        def add(_: object, statement: str, __: object) -> bool:
            if "ORDER BY id" in statement:
                pages.append(statement)
            return True

        connection.exec_trace = add

    apsw.connection_hooks.append(trace)
    try:
        assert await queue_again(settings, print) == [job.id for job in stopped]
    finally:
        apsw.connection_hooks.remove(trace)
    assert pages
    for page in pages:
        assert "INDEXED BY jobs_stopped WHERE stopped = 1" in page or (
            "INDEXED BY jobs_live WHERE live = 1 AND holds = 1" in page
        )
    assert await queue_again(settings, print) == []
    for job in stopped:
        current = await store.get(job.id)
        assert current is not None
        assert (current.status, current.desired) == (Status.QUEUED, Desired.RUN)
    await store.close()


async def stored_job_that_runs(settings: Settings) -> Job:
    store = await wiring.job_store(settings)
    try:
        running = at_status(a_job(), Status.PENDING, Status.DOWNLOADING, Status.PROCESSING)
        return await store.insert(replace(running, attempt=Attempt(number=1)))
    finally:
        await store.close()


def test_an_interrupted_stop_says_that_the_platform_runs_and_how_halted_jobs_go_on(tmp_path: Path) -> None:
    """Ctrl-C in `weft down` ended without a word: the jobs stayed halted, on a platform that ran."""
    prepare(home := Home(tmp_path))
    job = asyncio.run(stored_job_that_runs(Settings(home=tmp_path)))
    reports: list[str] = []

    def report(text: str) -> None:
        reports.append(text)
        if text.startswith("halting"):
            raise KeyboardInterrupt  # as Ctrl-C while the job has its grace

    with pytest.raises(KeyboardInterrupt):
        Platform._halt_jobs(home, report)
    halting, last = reports
    assert job.id in halting
    assert last == f"the platform still runs; `weft up --home {tmp_path}` queues the jobs again that are halted"


async def test_a_job_that_the_stop_could_not_halt_in_time_is_queued_again_once_it_is_halted(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    store = await wiring.job_store(settings)
    running = at_status(a_job(), Status.PENDING, Status.DOWNLOADING, Status.PROCESSING, Status.HALTING)
    halting = replace(running, attempt=Attempt(number=1), desired=Desired.HALT, desired_by=PLATFORM)
    job = await store.insert(halting)
    reports: list[str] = []
    starting = asyncio.create_task(queue_again(settings, reports.append))
    await until(lambda: reports or starting.done())
    assert [job.id in report for report in reports] == [True]  # it waits for the job
    done = moved(job, Status.HALTED, actor="guardian", now=NOW, reason=job.halt_reason)
    job = await store.replace(job, done)  # it still holds its hardware
    await store.replace(job, released(job, now=NOW))
    assert await starting == [job.id]
    current = await store.get(job.id)
    assert current is not None
    assert (current.status, current.desired) == (Status.QUEUED, Desired.RUN)
    await store.close()


async def test_a_start_waits_for_no_job_that_a_user_halts(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    store = await wiring.job_store(settings)
    running = at_status(a_job(), Status.PENDING, Status.DOWNLOADING, Status.PROCESSING, Status.HALTING)
    await store.insert(replace(running, attempt=Attempt(number=1), desired=Desired.HALT, desired_by="user:ada"))
    reports: list[str] = []
    assert await queue_again(settings, reports.append) == []
    assert reports == []
    await store.close()
