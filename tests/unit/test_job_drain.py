"""After a stop of the platform its start queues the jobs again that the stop halted, and reads no others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from services.core.bootstrap import wiring
from services.core.domain.job import PLATFORM, Attempt, Job
from services.core.domain.status import Desired, Status
from services.core.runtime.home import Home
from services.core.runtime.settings import Settings
from services.local.commands import Platform
from services.local.job_drain import queue_again
from services.local.layout import prepare
from tests.documents import a_job, at_status


def halted(by: str) -> Job:
    return replace(at_status(a_job(), Status.HALTED), desired=Desired.HALT, desired_by=by)


async def test_a_start_reads_only_the_jobs_that_the_stop_of_the_platform_halted(tmp_path: Path) -> None:
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
        assert await queue_again(settings) == [job.id for job in stopped]
    finally:
        apsw.connection_hooks.remove(trace)
    assert pages
    assert all("INDEXED BY jobs_stopped" in page for page in pages)
    assert await queue_again(settings) == []
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
