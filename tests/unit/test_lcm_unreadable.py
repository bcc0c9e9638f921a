"""A job with an unreadable document: no other job gets its hardware or waits for it, and it continues once repaired."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.core.domain.codec import dump
from services.core.domain.errors import Unavailable
from services.core.domain.job import SCHEMA, Job
from services.core.domain.sizes import SIZES, Size
from services.core.domain.status import Desired, Status
from services.core.runtime.quarantine import JOB, Quarantine
from services.lcm.unreadable import UnreadableJobs
from tests.testbed.control_plane import ControlPlane, Process
from tests.testbed.memory.jobs import MemoryJobStore

pytestmark = pytest.mark.looptime(noop_cycles=0)
MOST = {"resources": {"cpus": 10, "memory": "1GB"}}
"""Two of them do not fit on the only node, which has 16 CPUs."""
SMALL = {"resources": {"cpus": 2, "memory": "1GB"}}


def damaged(job: Job, how: str) -> str:
    whole: dict[str, Any] = dump(job)
    match how:
        case "not JSON":
            return "{"
        case "no mapping":
            return "[1, 2]"
        case "another's":
            return json.dumps({**whole, "id": "jsomebodyelse"})
        case "fields of other types":
            return json.dumps({**whole, "state": 7, "created": "yesterday"})
        case "an unknown status":
            return json.dumps({**whole, "state": {**whole["state"], "status": "BANANA"}})
        case "a time beyond all calendars":
            return json.dumps({**whole, "updated": 10**30})
        case _:
            raise AssertionError(how)


HOW = [
    "not JSON",
    "no mapping",
    "another's",
    "fields of other types",
    "an unknown status",
    "a time beyond all calendars",
]


def held(process: Process) -> list[tuple[str, str]]:
    return [(thing.kind, thing.place) for thing in process.service.quarantine.entries()]


@pytest.mark.parametrize("how", HOW)
async def test_a_running_job_keeps_its_hardware_when_its_document_is_damaged(plane: ControlPlane, how: str) -> None:
    lcm = await plane.start_lcm()
    await plane.start_pool()
    job_id = await plane.submit(**MOST)
    plane.helpers.fate(job_id, run_s=1_000)
    await plane.running(job_id)
    sound = await plane.job(job_id)
    plane.jobs.plant(job_id, damaged(sound, how))
    too_large, small = await plane.submit(**MOST), await plane.submit(**SMALL)
    await asyncio.sleep(60)

    assert held(lcm) == [(JOB, job_id)]
    assert (await plane.job(too_large)).status is Status.QUEUED
    assert [learner.runs for learner in plane.cluster.learners(job_id)] == [1]
    await plane.kill(lcm)  # its successor never read the sound document
    again = await plane.start_lcm()
    await asyncio.sleep(60)
    assert held(again) == [(JOB, job_id)]
    assert (await plane.job(too_large)).status is Status.QUEUED

    plane.jobs.plant(job_id, json.dumps(dump(sound)))
    await plane.set_desired(job_id, Desired.KILL)
    assert (await plane.rested(job_id)).status is Status.KILLED
    assert (await plane.rested(too_large)).status is Status.COMPLETED
    assert (await plane.rested(small)).status is Status.COMPLETED
    await plane.until(lambda _: held(again) == [], job_id)  # the next check of damaged documents releases it


async def test_other_jobs_run_while_one_document_is_damaged(plane: ControlPlane) -> None:
    await plane.start_lcm()
    await plane.start_pool()
    bad = await plane.submit(**SMALL)
    await plane.running(bad)
    plane.jobs.plant(bad, "{")
    jobs = [await plane.submit(**SMALL) for _ in range(12)]
    assert {(await plane.rested(job)).status for job in jobs} == {Status.COMPLETED}


async def test_an_admission_holds_its_hardware_when_its_document_is_damaged(plane: ControlPlane) -> None:
    lcm = await plane.start_lcm()
    job_id = await plane.submit(**MOST)
    sound = await plane.reached(job_id, Status.PENDING)
    plane.jobs.plant(job_id, json.dumps({**dump(sound), "updated": None}))
    other = await plane.submit(**MOST)
    await asyncio.sleep(10)
    assert (await plane.job(other)).status is Status.QUEUED
    await plane.kill(lcm)
    again = await plane.start_lcm()
    await asyncio.sleep(10)
    assert (await plane.job(other)).status is Status.QUEUED
    assert held(again) == [(JOB, job_id)]
    await plane.jobs.delete(job_id)
    await plane.reached(other, Status.PENDING)


async def test_a_document_of_a_newer_version_keeps_its_hardware_and_is_not_quarantined(plane: ControlPlane) -> None:
    lcm = await plane.start_lcm()
    job_id = await plane.submit(**MOST)
    sound = await plane.reached(job_id, Status.PENDING)
    plane.jobs.plant(job_id, json.dumps({**dump(sound), "schema": SCHEMA + 1, "state": "of another kind"}))
    other = await plane.submit(**MOST)
    await asyncio.sleep(100)
    assert (await plane.job(other)).status is Status.QUEUED
    assert held(lcm) == []


async def test_a_job_with_an_unreadable_spec_holds_its_hardware_until_its_learners_are_gone(
    plane: ControlPlane,
) -> None:
    await plane.start_lcm()
    pool = await plane.start_pool()
    job_id = await plane.submit(**MOST)
    plane.helpers.fate(job_id, run_s=1_000)
    await plane.running(job_id)
    await plane.kill(pool)
    job = await plane.job(job_id)
    await plane.jobs.replace(job, replace(job, spec={"name": "of", "colour": "blue"}))
    other = await plane.submit(**MOST)
    await asyncio.sleep(30)
    assert (await plane.job(other)).status is Status.QUEUED
    await plane.start_pool()
    assert (await plane.rested(job_id)).status is Status.FAILED
    await plane.running(other)


async def test_a_waiting_job_with_an_unreadable_spec_is_quarantined_and_blocks_no_other(
    plane: ControlPlane,
) -> None:
    lcm = await plane.start_lcm()
    await plane.start_pool()
    bad = await plane.submit(resources={"cpus": "many"})
    other = await plane.submit(**SMALL)
    assert (await plane.rested(other)).status is Status.COMPLETED
    assert held(lcm) == [(JOB, f"{bad}/spec")]
    await plane.set_desired(bad, Desired.KILL)
    await asyncio.sleep(2)
    assert held(lcm) == []


async def test_a_damaged_document_of_an_ended_job_is_found_by_the_periodic_search(plane: ControlPlane) -> None:
    lcm = await plane.start_lcm()
    await plane.start_pool()
    jobs = [await plane.submit(**SMALL) for _ in range(3)]
    for job in jobs:
        await plane.rested(job)
    sound = dump(await plane.job(jobs[1]))
    plane.jobs.plant(jobs[1], "null")
    await asyncio.sleep(40)
    (thing,) = lcm.service.quarantine.entries()
    assert (thing.place, thing.job, "is a NoneType, not a mapping" in thing.reason) == (jobs[1], jobs[1], True)
    assert plane.clock.now_ms() - thing.since < 40_000
    plane.jobs.plant(jobs[1], json.dumps(sound))
    await asyncio.sleep(40)
    assert held(lcm) == []


class StoreAway(MemoryJobStore):
    """Answers no ``get``."""

    async def get(self, job_id: str) -> Job | None:
        raise Unavailable(f"no answer for {job_id}")


async def test_an_unreadable_document_stays_known_while_the_store_does_not_answer(plane: ControlPlane) -> None:
    job_id = await plane.submit(**SMALL)
    plane.jobs.plant(job_id, "{")
    quarantine = Quarantine(plane.clock.now_ms, CollectorRegistry())
    unreadable = UnreadableJobs(StoreAway(), plane.cluster, quarantine, SIZES, Size(0, 0, 0))
    page, _ = await plane.jobs.unreadable(after="", limit=10)
    unreadable.add(page)
    with pytest.raises(Unavailable):
        await unreadable.check(limit=10)
    assert unreadable.any  # code that this document may name is not removed
