"""A job that its owner halts while its pods start, on the Kubernetes adapter, in virtual time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

from services.core.domain.status import Desired, Status
from services.core.use_cases.jobs import history
from tests.simulation.checker import Declared
from tests.simulation.pod_platform import PodPlatform
from tests.simulation.virtual_time import run
from tests.testbed.helpers_in_memory import Fate

_START_S = 0.6
"""Longer than the Guardian needs to send the deletion, shorter than its wait for the answer."""
_LATE_S = 1.5
"""Longer than containers need to start."""
_PAUSE_S = 12.0
"""Longer than another Guardian needs to take the job over and stop it."""
_GRACE_S = 30
"""Longer than the pause."""


async def halt_while_the_pod_starts(home: Path) -> tuple[bool, str]:
    """Returns whether its results are stored, and what the owner reads of the halt.

    The pod's deletion reaches the server after its containers have started.
    """
    random.seed(0)
    platform = PodPlatform(0, home)
    for place in (("lcm", "one"), ("guardian", "one")):
        await platform.launch(*place)
    guardian = platform.connection_of(("guardian", "one"))
    requests: list[asyncio.Task[bool]] = []

    def halt(job_id: str) -> None:
        guardian.armed["late effect"] = ("cluster.delete", _LATE_S)
        requests.append(asyncio.create_task(platform.request_desired(job_id, Desired.HALT)))

    platform.simulated_cluster.on_next_bound = halt
    platform.simulated_cluster.start_s = _START_S
    spec = {"name": "digits", "command": "python train.py", "grace": "1s", "store_timeout": "6s"}
    declared = Declared.one_learner(grace_s=1, store_s=6)
    job_id = await platform.submit_job(spec, declared)
    platform.simulator.fates[job_id, "worker-0", 1] = Fate(download_s=0.1, run_s=None, store_s=2)
    job = await platform.reached(job_id, Status.HALTED)
    assert await asyncio.gather(*requests) == [True]
    assert not guardian.armed, "the pod was not deleted: this test shows nothing"
    assert platform.checker.breaches == []
    stored = platform.checker.learners.gang(job_id, 1)["worker-0"].stored
    await platform.close()
    return stored, (await history(platform.jobs, job))[-1].message


def test_a_learner_that_begins_just_before_its_halt_takes_effect_stores_its_results(tmp_path: Path) -> None:
    stored, message = run(halt_while_the_pod_starts(tmp_path))
    assert stored
    assert "did not store" not in message


async def halt_while_a_pod_is_created(home: Path) -> bool:
    """Returns whether the pod is created after the halt was requested. The job is HALTED and released at the end.

    A Guardian is paused while it creates the pod of a learner that is started again. Another one takes the job over and
    stops it, and then the pod is created, while the other learner uses its grace.
    """
    random.seed(0)
    platform = PodPlatform(0, home)
    for place in (("lcm", "one"), ("guardian", "one")):
        await platform.launch(*place)
    learners = ("worker-0", "worker-1")
    spec = {
        "name": "digits",
        "command": "python train.py",
        "grace": f"{_GRACE_S}s",
        "roles": {"worker": {"count": 2, "on_failure": "restart"}},
        "retries": {"max": 1, "backoff": "1s"},
    }
    declared = replace(
        Declared.one_learner(grace_s=_GRACE_S),
        learners=dict.fromkeys(learners, (1, 0)),
        deciding=learners,
        restarted=learners,
        retries=1,
    )
    job_id = await platform.submit_job(spec, declared)
    platform.simulator.fates[job_id, "worker-0", 1] = Fate(run_s=None, on_term=None)
    platform.simulator.fates[job_id, "worker-1", 1] = Fate(run_s=5, code=3)
    await platform.reached(job_id, Status.PROCESSING)
    guardian = platform.connection_of(("guardian", "one"))
    await platform.launch("guardian", "two")
    guardian.pause_at = ("cluster.create", _PAUSE_S)
    await platform.until(lambda _: not guardian.running.is_set(), job_id)
    assert await platform.request_desired(job_id, Desired.HALT)
    await platform.reached(job_id, Status.HALTING)
    gang = platform.checker.learners.gang(job_id, 1)
    is_late = bool(gang["worker-1"].run == 1)
    await platform.until(lambda _: gang["worker-1"].run == 2, job_id)
    assert (await platform.document(job_id)).status is Status.HALTING
    await platform.reached(job_id, Status.HALTED, within_s=4 * _GRACE_S)
    await platform.rested(job_id)
    assert platform.checker.breaches == []
    await platform.close()
    return is_late


def test_job_is_halted_although_a_pod_is_created_after_its_stop(tmp_path: Path) -> None:
    """It stayed HALTING without end, and held its hardware."""
    assert run(halt_while_a_pod_is_created(tmp_path))
