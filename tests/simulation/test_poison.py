"""Malformed job documents and etcd values: a healthy job and the next one end as they should while all other jobs are
damaged, and no loop of a service ends (R14, law 5).

This suite runs in memory and in virtual time, with thousands of damages. tests/integration/test_poison.py uses real
stores, files and processes.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.core.domain.codec import dump
from services.core.domain.job import Job
from services.core.domain.status import Desired, Status
from services.core.domain.status_keys import job_prefix
from services.core.runtime.quarantine import JOB
from tests.promises import Promise
from tests.testbed.control_plane import WHOLE_LIFE, ControlPlane, Process
from tests.testbed.mutations import Mutator

pytestmark = pytest.mark.looptime(noop_cycles=0)
DAMAGES_PER_RUN = 25
SMALL = {"resources": {"cpus": 0.1, "memory": "10MB"}}
UNEXPECTED_ERRORS = {
    "dispatcher.failed",
    "dispatcher.round_failed",
    "pool.watch_failed",
    "guardian.crashed",
    "background.failed",
}
"""Log events of errors that a service did not expect."""


class PoisonRun:
    """Jobs in every state whose documents and values are damaged, and one healthy job."""

    def __init__(self, plane: ControlPlane, seed: int) -> None:
        self.plane, self.mutator = plane, Mutator(seed)
        self.victims: dict[str, dict[str, Any]] = {}
        """Job id -> its document before the damage."""
        self.lcm: Process

    async def begin(self) -> str:
        """Starts the services and submits the jobs. Returns the id of the healthy one."""
        plane = self.plane
        self.lcm = await plane.start_lcm(quarantine_s=3, collect_s=2)
        await plane.start_pool()
        completed, running = await plane.submit(**SMALL), await plane.submit(**SMALL, learners=2)
        plane.helpers.fate(running, run_s=None)
        halted, second_completed = await plane.submit(**SMALL), await plane.submit(**SMALL)
        plane.helpers.fate(halted, run_s=None)
        await plane.rested(completed)
        for job in (running, halted):
            await plane.running(job)
        await plane.set_desired(halted, Desired.HALT)
        await plane.rested(halted)
        await plane.rested(second_completed)
        too_large = await plane.submit(learners=900)
        healthy = await plane.submit(**SMALL, learners=2)
        plane.helpers.fate(healthy, run_s=60)
        await plane.running(healthy)
        for job in (completed, running, halted, second_completed, too_large):
            self.victims[job] = dump(await plane.job(job))
        return healthy

    async def damage(self) -> None:
        """Damages a random document or value, or adds a foreign key."""
        kinds = (self._damage_document, self._damage_document, self._damage_value, self._add_foreign_key)
        await self.mutator.random.choice(kinds)()

    async def _damage_document(self) -> None:
        job = self.mutator.random.choice(sorted(self.victims))
        self.mutator.counts["job document"] += 1
        self.plane.jobs.plant(job, self.mutator.text(self.victims[job]))

    async def _damage_value(self) -> None:
        """Damages the value of a victim's key that exists, or could."""
        job, random = self.mutator.random.choice(sorted(self.victims)), self.mutator.random
        present = list(await self.plane.status.list(job_prefix(job)))
        key, value = (
            (random.choice(present).key, random.choice(present).value)
            if present and random.random() < 0.7
            else (f"{job_prefix(job)}{random.choice(('attempt', 'learners/worker-0', 'guardian', 'plan/00'))}", "{}")
        )
        self.mutator.counts["etcd value"] += 1
        try:
            document = json.loads(value)
        except (ValueError, RecursionError):  # it was damaged before
            document = {}
        await self.plane.status.put(key, self.mutator.text(document))

    async def _add_foreign_key(self) -> None:
        """Adds a key of no service, under a prefix that services read."""
        random = self.mutator.random
        key = random.choice(
            (
                "/jobs/",
                "/jobs/x",
                "/jobs//",
                "/jobs/jnobody/attempt",
                "/jobs/jnobody/learners/",
                "/members/",
                "/members/guardian/",
                "/members/lcm/mnobody",
                "/members/guardian/mnobody",
                "/jobs/\\u00e9/learners/w",
                "/lcm/other",
                "/nobody/knows",
            )
        )
        self.mutator.counts["foreign key"] += 1
        await self.plane.status.put(key, self.mutator.text({"attempt": 1, "learners": 1, "holder": "m", "term": 1}))


async def run_seed(seed: int, home: Path) -> Counter[str]:
    """Runs one seed. Returns kind -> number of damages."""
    plane = ControlPlane(home)
    run = PoisonRun(plane, seed)
    healthy = await run.begin()
    with capture_logs() as logs:
        for _ in range(DAMAGES_PER_RUN):
            await run.damage()
            await asyncio.sleep(run.mutator.random.choice((0, 0.01, 0.3, 1.1)))
        job = await plane.rested(healthy, within_s=120)
        assert (job.status, job.attempt.number) == (Status.COMPLETED, 1)
        assert await plane.path(healthy) == WHOLE_LIFE
        next_job = await plane.rested(await plane.submit(**SMALL), within_s=60)
        assert (next_job.status, next_job.attempt.number) == (Status.COMPLETED, 1)
    errors = [line for line in logs if line["event"] in UNEXPECTED_ERRORS]
    assert errors == [], f"seed {seed}"
    assert all(not task.done() for process in plane._processes for task in process.tasks), f"seed {seed}"
    await check_repaired_jobs_continue(run)
    await plane.close()
    return run.mutator.counts


async def check_repaired_jobs_continue(run: PoisonRun) -> None:
    """Restores the documents of all victims. Each continues by itself and ends as its owner wants."""
    plane = run.plane
    for job_id, document in list(run.victims.items()):
        state = plane.cluster._jobs.get(job_id)
        if state is not None and state.highest[0] > document["attempt"]["number"]:
            # A changed digit named a later attempt, which the cluster cannot know to be wrong: it refuses this one now.
            await plane.jobs.delete(job_id)
            del run.victims[job_id]
        else:
            plane.jobs.plant(job_id, json.dumps(document))
    for job_id in run.victims:
        if not (await plane.job(job_id)).at_rest or (await plane.job(job_id)).status is Status.HALTED:
            await plane.set_desired(job_id, Desired.KILL)

    def at_rest(job: Job) -> bool:
        return job.at_rest

    for job_id in run.victims:
        await plane.until(at_rest, job_id, within_s=120)
    for _ in range(60):
        if not run.lcm.service.quarantine.places(JOB):
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"still in quarantine: {run.lcm.service.quarantine.entries()}")


@pytest.mark.promise("R14")
@pytest.mark.timeout(1800)
async def test_healthy_jobs_complete_while_documents_and_values_of_others_are_damaged(
    promise: Promise, tmp_path: Path
) -> None:
    gc.collect()  # what earlier tests left must not be finalized inside the recursion of a document nested too deep
    n = promise.n(short=150, long=5_000)
    counts: Counter[str] = Counter()
    for seed in range(-(-n // DAMAGES_PER_RUN)):
        try:
            counts += await run_seed(seed, tmp_path / str(seed))
        except AssertionError as failed:
            raise AssertionError(f"seed {seed}: {failed}") from failed
    promise.kept(n, "damages of other jobs' documents and etcd values while a healthy job runs")
    promise.saw("of these " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
