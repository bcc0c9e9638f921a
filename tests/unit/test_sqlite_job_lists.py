"""Lists of jobs on SQLite cost what they show, not what their user has ever submitted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from services.core.adapters.sqlite import SqliteJobStore
from services.core.adapters.sqlite.job_tables import scans
from services.core.domain.status import Status
from services.core.ports.job_store import JobQuery
from tests.documents import a_job, at_status

RUNNING = JobQuery(tenant="acme", statuses=(Status.QUEUED, Status.PENDING, Status.PROCESSING))
SPEC = {"name": "digits", "command": "python train.py"}


def steps_of(file: Path, query: JobQuery) -> int:
    """Dozens of instructions of SQLite's virtual machine for a page of the list."""
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    connection = apsw.Connection(str(file))
    connection.set_progress_handler(count, 12)
    for scan in scans(query):
        select, values = scan.page(newest_first=True, after=None)
        connection.execute(select, (*values, 100)).fetchall()
    connection.close()
    return steps


@pytest.mark.parametrize("query", [replace(RUNNING, user="ada"), replace(RUNNING, name="digits")])
async def test_a_list_of_running_jobs_of_a_user_or_a_name_costs_nothing_for_those_that_have_ended(
    tmp_path: Path, query: JobQuery
) -> None:
    store = await SqliteJobStore.open(tmp_path / "jobs.sqlite")
    running = await store.insert(at_status(a_job(spec=SPEC), Status.PENDING))
    few = steps_of(tmp_path / "jobs.sqlite", query)
    await asyncio.gather(*(store.insert(at_status(a_job(spec=SPEC), Status.KILLED)) for _ in range(500)))
    many = steps_of(tmp_path / "jobs.sqlite", query)
    assert [job.id for job in await store.find(query)] == [running.id]
    assert many == few
    await store.close()
