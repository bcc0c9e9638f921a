"""What jobs that just train and tenants without jobs cost the API server: the whole control plane, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from services.core.adapters.kubernetes import names
from services.core.domain.status import Status
from tests.simulation.checker import Declared
from tests.simulation.pod_platform import OPTIONS, PodPlatform
from tests.simulation.virtual_time import run
from tests.testbed.helpers_in_memory import Fate

_MINUTES = 4
"""Shorter than the time for which an observation counts."""


async def submit(platform: PodPlatform) -> str:
    """A job of one learner, which trains until it is stopped."""
    spec = {"name": "digits", "command": "python train.py", "learners": 1, "resources": {"cpus": 0.5}}
    declared = Declared.one_learner(cpus=0.5)
    job_id = await platform.submit_job(spec, declared)
    platform.simulator.fates[job_id, "worker-0", 1] = Fate(run_s=None)
    return job_id


async def requests(home: Path, *, jobs: int, tenants: int) -> Counter[str]:
    """The requests of a minute in which so many jobs train. ``tenants``: those that have no job."""
    random.seed(0)
    platform = PodPlatform(0, home)
    server = platform.simulated_cluster.server
    for number in range(tenants):
        name, labels = f"weft-idle-{number}", names.tenant_labels(f"idle-{number}", OPTIONS.installation)
        server.put("/api/v1/namespaces", ("", name), {"metadata": {"name": name, "labels": labels}})
    for place in (("lcm", "one"), ("guardian", "one")):
        await platform.launch(*place)
    submitted = [await submit(platform) for _ in range(jobs)]
    for job_id in submitted:
        await platform.reached(job_id, Status.PROCESSING)
    await asyncio.sleep(30)
    server.requests.clear()
    await asyncio.sleep(60 * _MINUTES)
    counted = Counter({kind: count // _MINUTES for kind, count in server.requests.items()})
    assert [(await platform.job(job_id)).status for job_id in submitted] == [Status.PROCESSING] * jobs
    assert platform.checker.breaches == []
    await platform.close()
    return counted


@pytest.mark.parametrize(("jobs", "tenants"), [(0, 0), (1, 300), (20, 0)])
def test_training_jobs_and_idle_tenants_cost_the_api_server_a_request_in_two_seconds(
    tmp_path: Path, jobs: int, tenants: int
) -> None:
    counted = run(requests(tmp_path, jobs=jobs, tenants=tenants))
    assert counted.total() <= 30, counted
