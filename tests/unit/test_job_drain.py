"""After a stop of the platform its start queues the jobs again that the stop halted, and reads no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import apsw

from services.core.bootstrap import wiring
from services.core.domain.job import PLATFORM, Job
from services.core.domain.status import Desired, Status
from services.core.runtime.settings import Settings
from services.local.job_drain import queue_again
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
