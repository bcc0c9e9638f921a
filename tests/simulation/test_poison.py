"""Poisoned documents and values: a healthy job and the next one end as they should while everything beside them is
ruined, and nothing that runs for ever ends (R14, law 5).

In memory and in virtual time, for thousands of them; with real stores, files and processes: tests/integration/
test_poison.py.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.core.domain.codec import dump
from services.core.domain.job import Job
from services.core.domain.status import Desired, Status
from services.core.runtime.quarantine import JOB
from tests.promises import Promise
from tests.testbed.control_plane import WHOLE_LIFE, ControlPlane, Process
from tests.testbed.mutations import Mutator

pytestmark = pytest.mark.looptime(noop_cycles=0)
EACH = 25
"""Mutations in one story."""
SMALL = {"resources": {"cpus": 0.1, "memory": "10MB"}}
OURS = {"dispatcher.failed", "dispatcher.round_failed", "pool.watch_failed", "guardian.crashed", "background.failed"}
"""What a service says where it met something it was not written for."""


class Story:
    """Victims of every kind beside a healthy job; harm to all of them but it."""

    def __init__(self, plane: ControlPlane, seed: int) -> None:
        self.plane, self.harm = plane, Mutator(seed)
        self.victims: dict[str, dict[str, Any]] = {}
        self.lcm: Process

    async def begin(self) -> str:
        """The healthy job's id."""
        plane = self.plane
        self.lcm = await plane.start_lcm(quarantine_s=3, collect_s=2)
        await plane.start_pool()
        over, running = await plane.submit(**SMALL), await plane.submit(**SMALL, learners=2)
        plane.helpers.fate(running, run_s=None)
        halted, gone = await plane.submit(**SMALL), await plane.submit(**SMALL)
        plane.helpers.fate(halted, run_s=None)
        await plane.rested(over)
        for job in (running, halted):
            await plane.running(job)
        await plane.set_desired(halted, Desired.HALT)
        await plane.rested(halted)
        await plane.rested(gone)
        impossible = await plane.submit(learners=900)
        healthy = await plane.submit(**SMALL, learners=2)
        plane.helpers.fate(healthy, run_s=60)
        await plane.running(healthy)
        for job in (over, running, halted, gone, impossible):
            self.victims[job] = dump(await plane.job(job))
        return healthy

    async def ruin(self) -> None:
        """One mutation somewhere."""
        await self.harm.random.choice((self._document, self._document, self._value, self._foreign))()

    async def _document(self) -> None:
        job = self.harm.random.choice(sorted(self.victims))
        self.harm.counts["job document"] += 1
        self.plane.jobs.plant(job, self.harm.text(self.victims[job]))

    async def _value(self) -> None:
        """Of a victim's key that is there, or might be."""
        job, random = self.harm.random.choice(sorted(self.victims)), self.harm.random
        present = list(await self.plane.status.list(f"/jobs/{job}/"))
        key, value = (
            (random.choice(present).key, random.choice(present).value)
            if present and random.random() < 0.7
            else (f"/jobs/{job}/{random.choice(('attempt', 'learners/worker-0', 'guardian', 'plan/00'))}", "{}")
        )
        self.harm.counts["etcd value"] += 1
        try:
            document = json.loads(value)
        except (ValueError, RecursionError):  # ruined before
            document = {}
        await self.plane.status.put(key, self.harm.text(document))

    async def _foreign(self) -> None:
        """Keys that nobody knows, under prefixes that everybody reads."""
        random = self.harm.random
        key = random.choice((
            "/jobs/", "/jobs/x", "/jobs//", "/jobs/jnobody/attempt", "/jobs/jnobody/learners/", "/members/",
            "/members/guardian/", "/members/lcm/mnobody", "/members/guardian/mnobody", "/jobs/\\u00e9/learners/w",
            "/lcm/other", "/nobody/knows",
        ))  # fmt: skip
        self.harm.counts["foreign key"] += 1
        await self.plane.status.put(key, self.harm.text({"attempt": 1, "learners": 1, "holder": "m", "term": 1}))


async def told(seed: int, home: Path) -> Counter[str]:
    plane = ControlPlane(home)
    story = Story(plane, seed)
    healthy = await story.begin()
    with capture_logs() as logs:
        for _ in range(EACH):
            await story.ruin()
            await asyncio.sleep(story.harm.random.choice((0, 0.01, 0.3, 1.1)))
        job = await plane.rested(healthy, within_s=120)
        assert (job.status, job.attempt.number) == (Status.COMPLETED, 1)
        assert await plane.path(healthy) == WHOLE_LIFE
        after = await plane.rested(await plane.submit(**SMALL), within_s=60)
        assert (after.status, after.attempt.number) == (Status.COMPLETED, 1)
    faults = [line for line in logs if line["event"] in OURS]
    assert faults == [], f"seed {seed}"
    assert all(not task.done() for process in plane._processes for task in process.tasks), f"seed {seed}"
    await _mended(story)
    await plane.close()
    return story.harm.counts


async def _mended(story: Story) -> None:
    """Every victim whose document is what it was goes on by itself, and comes to the end that its owner wants."""
    plane = story.plane
    for job_id, document in list(story.victims.items()):
        place = plane.cluster._jobs.get(job_id)
        if place is not None and place.highest[0] > document["attempt"]["number"]:
            # A flipped digit named a later attempt, and nobody could know better: what is of the past stays fenced off.
            await plane.jobs.delete(job_id)
            del story.victims[job_id]
        else:
            plane.jobs.plant(job_id, json.dumps(document))
    for job_id in story.victims:
        if not (await plane.job(job_id)).at_rest or (await plane.job(job_id)).status is Status.HALTED:
            await plane.set_desired(job_id, Desired.KILL)

    def at_rest(job: Job) -> bool:
        return job.at_rest

    for job_id in story.victims:
        await plane.until(at_rest, job_id, within_s=120)
    for _ in range(60):
        if not story.lcm.service.quarantine.places(JOB):
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"still in quarantine: {story.lcm.service.quarantine.entries()}")


@pytest.mark.promise("R14")
@pytest.mark.timeout(1800)
async def test_whatever_is_ruined_beside_it_a_healthy_job_and_the_next_one_end_as_they_should(
    promise: Promise, tmp_path: Path
) -> None:
    n = promise.n(short=150, long=5_000)
    counts: Counter[str] = Counter()
    for seed in range(-(-n // EACH)):
        try:
            counts += await told(seed, tmp_path / str(seed))
        except AssertionError as failed:
            raise AssertionError(f"seed {seed}: {failed}") from failed
    promise.kept(n, "mutations of job documents and etcd values beside a healthy job")
    promise.saw("of these " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
