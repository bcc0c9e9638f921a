"""Learners that are started again alone, on the Kubernetes adapter, in virtual time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from services.core.domain.job import Job
from services.core.domain.status import Status
from tests.simulation.api_server import PODS, Document
from tests.simulation.checker import Declared
from tests.simulation.pod_documents import key_of, path_of
from tests.simulation.pod_platform import PodPlatform
from tests.simulation.virtual_time import run
from tests.testbed.helpers_in_memory import Fate

_STORE_S = 120
"""The helper of an evicted pod has so long to store, and uses it."""
GANG = Declared(
    learners={"worker-0": (1, 0), "worker-1": (1, 0)},
    deciding={"worker-0", "worker-1"},
    ignored=(),
    restarted={"worker-0", "worker-1"},
    least={},
    retries=1,
    grace_s=1,
    store_s=_STORE_S,
    refused=False,
)


def pod_of(platform: PodPlatform, job_id: str, learner: str) -> Document | None:
    pods = platform.simulated_cluster.server.objects(PODS).values()
    return next((pod for pod in pods if pod["metadata"]["name"] == f"weft-{job_id}-1-{learner}"), None)


def evict(platform: PodPlatform, pod: Document) -> None:
    """Evicts a pod as a drain of its node does."""
    cluster, conditions = platform.simulated_cluster, pod["status"]["conditions"]
    learners = platform.simulator.learners()
    platform.checker.learner_lost(next(learner for learner in learners if vars(learner)["key"] == key_of(pod)))
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    cluster.server.change(PODS, key_of(pod), {"status": {"conditions": [*conditions, disrupted]}})
    cluster.server.handle("DELETE", path_of(pod), {}, {}, "", None)


async def restart_beside_a_slow_eviction(home: Path) -> tuple[float, bool, Job]:
    """Returns how many seconds after its failure worker-1 runs again, and the job at its end.

    The pod of worker-0 is evicted before that failure and ends two minutes later. Also returns whether it had ended
    when worker-1 ran again.
    """
    random.seed(0)
    platform = PodPlatform(0, home)
    for place in (("lcm", "one"), ("guardian", "one")):
        await platform.launch(*place)
    spec = {
        "name": "digits",
        "command": "python train.py",
        "grace": "1s",
        "store_timeout": f"{_STORE_S}s",
        "roles": {"worker": {"count": 2, "on_failure": "restart"}},
        "retries": {"max": 1, "backoff": "1s"},
    }
    job_id = await platform.submit_job(spec, GANG)
    fates = platform.simulator.fates
    fates[job_id, "worker-0", 1] = Fate(run_s=None, store_s=None)
    fates[job_id, "worker-1", 1] = Fate(run_s=20, code=3)
    fates[job_id, "worker-0", 4] = fates[job_id, "worker-1", 4] = Fate(run_s=200)
    await platform.reached(job_id, Status.PROCESSING)
    evicted = pod_of(platform, job_id, "worker-0")
    assert evicted is not None
    evict(platform, evicted)
    await platform.until(lambda job: job.attempt.run_of("worker-0") == 2, job_id)
    await platform.until(lambda job: job.attempt.run_of("worker-1") == 2, job_id)
    failed_at = asyncio.get_running_loop().time()
    gang = platform.checker.learners.gang(job_id, 1)
    await platform.until(lambda _: gang["worker-1"].run == 2 and gang["worker-1"].alive, job_id, within_s=900)
    after_s = asyncio.get_running_loop().time() - failed_at
    present = pod_of(platform, job_id, "worker-0")
    ended_before = present is None or present["metadata"]["uid"] != evicted["metadata"]["uid"]
    job = await platform.reached(job_id, Status.COMPLETED, within_s=900)
    assert platform.checker.breaches == []
    await platform.close()
    return after_s, ended_before, job


def test_failed_learner_runs_again_while_the_evicted_pod_of_another_is_slow_to_end(tmp_path: Path) -> None:
    """It waited for that pod, too."""
    after_s, ended_before, job = run(restart_beside_a_slow_eviction(tmp_path))
    assert not ended_before
    assert after_s < 10
    assert (job.attempt.number, job.attempt.run_of("worker-0"), job.attempt.run_of("worker-1")) == (1, 2, 2)
