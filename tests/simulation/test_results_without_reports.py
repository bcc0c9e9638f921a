"""A learner of which no report names the start, and that ends with its gang: on Kubernetes, in virtual time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.adapters.kubernetes import names
from services.core.domain.status import Status
from services.core.use_cases.jobs import history
from tests.simulation.api_server import CONFIG_MAPS
from tests.simulation.pod_platform import PodPlatform
from tests.simulation.test_restarts_of_pods import GANG
from tests.simulation.virtual_time import run
from tests.testbed.helpers_in_memory import Fate
from tests.testbed.memory.cluster import MemoryLearner

_GUARDIAN = ("guardian", "one")
_GRACE_S, _STORE_S = 1, 30
_MORE_S = 10
"""A Guardian observes the cluster at most so much later."""


def _is_stopped(platform: PodPlatform) -> bool:
    """Whether the stop of the job's attempt is durable in the cluster."""
    owners = platform.simulated_cluster.server.objects(CONFIG_MAPS).values()
    return any(names.annotation(owner, names.STOP) for owner in owners)


async def fail_beside_a_learner_without_reports(
    home: Path, *, is_wiped: bool, cut_off_s: float = 0.5
) -> tuple[bool, str]:
    """Returns whether worker-0 has stored its results, and what the owner reads of the end.

    The helper of worker-0 does not reach the metrics service from the start of its process until ``cut_off_s`` after
    the stop.
    ``is_wiped``: etcd has also lost the earlier reports, and another Guardian takes over. Then worker-1 fails.
    """
    random.seed(0)
    platform = PodPlatform(0, home)
    for place in (("lcm", "one"), _GUARDIAN):
        await platform.launch(*place)
    started: dict[str, MemoryLearner] = {}
    on_started = platform.simulated_cluster.on_start

    def on_start(learner: MemoryLearner) -> None:
        started[learner.name] = learner
        if learner.name == "worker-0":
            platform.simulator.cut_off.add(learner)
        on_started(learner)

    platform.simulated_cluster.on_start = on_start
    spec = {
        "name": "digits",
        "command": "python train.py",
        "grace": f"{_GRACE_S}s",
        "store_timeout": f"{_STORE_S}s",
        "roles": {"worker": {"count": 2}},
    }
    job_id = await platform.submit_job(spec, replace(GANG, restarted=(), retries=0, grace_s=_GRACE_S, store_s=_STORE_S))
    platform.simulator.fates[job_id, "worker-0", 1] = Fate(run_s=None, store_s=3)
    platform.simulator.fates[job_id, "worker-1", 1] = Fate(run_s=None)
    await platform.until(lambda _: len(started) == 2, job_id)
    if is_wiped:
        before = await platform.document(job_id)
        await platform.kill(platform.alive[_GUARDIAN])
        platform.etcd.forget()
        await platform.launch(*_GUARDIAN)
        await platform.until(lambda job: job.guardian.term > before.guardian.term, job_id)
    platform.checker.ends_by_itself(started["worker-1"], 1, lost=False)
    started["worker-1"].end(1)
    await platform.until(lambda _: _is_stopped(platform), job_id)
    asyncio.get_running_loop().call_later(cut_off_s, platform.simulator.cut_off.discard, started["worker-0"])
    job = await platform.reached(job_id, Status.FAILED, within_s=_GRACE_S + _STORE_S + _MORE_S)
    await platform.rested(job_id)
    assert platform.checker.breaches == []
    stored = platform.checker.learners.gang(job_id, 1)["worker-0"].stored
    await platform.close()
    return stored, (await history(platform.jobs, job))[-1].message


@pytest.mark.parametrize("is_wiped", [False, True])
def test_results_of_a_learner_are_not_lost_where_the_report_of_its_start_is_missing(
    tmp_path: Path, *, is_wiped: bool
) -> None:
    """Its pod was removed at once, as that of a learner that never ran."""
    stored, message = run(fail_beside_a_learner_without_reports(tmp_path, is_wiped=is_wiped))
    assert stored
    assert "did not store" not in message


def test_a_job_ends_although_a_learner_without_reports_never_stores(tmp_path: Path) -> None:
    work = fail_beside_a_learner_without_reports(tmp_path, is_wiped=True, cut_off_s=3_600)
    stored, message = run(work)
    assert not stored
    assert "worker-0 did not store its results" in message
