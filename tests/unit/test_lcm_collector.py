"""Leftovers of released jobs are removed; keys and learners of live and of unreadable jobs are not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from services.core.domain.errors import StaleFence, Unavailable
from services.core.domain.status import Status
from services.core.ports.job_store import DispatcherDoc
from services.lcm.collector import Collector
from services.lcm.instrumentation import Instrumentation
from tests.documents import a_learner, a_plan
from tests.testbed.control_plane import ControlPlane
from tests.testbed.memory.cluster import MemoryCluster
from tests.testbed.tripwire import Tripwire

pytestmark = pytest.mark.looptime(noop_cycles=0)


@pytest.fixture
def collector(plane: ControlPlane) -> Collector:
    return Collector(plane.jobs, plane.status, plane.cluster, Instrumentation(CollectorRegistry()))


async def learner_of(plane: ControlPlane, job_id: str, *, attempt: int = 1, term: int = 1) -> None:
    """A late effect: an activated learner that no Guardian knows of."""
    plan = a_plan(a_learner(), job=job_id, attempt=attempt, term=term)
    for step in plane.cluster.steps():
        await plane.cluster.do(step, plan)


async def test_leftovers_of_a_released_job_are_removed_by_the_second_collection(
    plane: ControlPlane, collector: Collector
) -> None:
    await plane.start_lcm(collect_s=10_000)
    await plane.start_pool()
    job_id = await plane.submit()
    await plane.rested(job_id)
    await plane.status.put(f"/jobs/{job_id}/plan/00", "{}")
    term = (await plane.jobs.dispatcher()).term
    assert await collector.collect(term) == 0
    assert await collector.collect(term) == 1
    assert await plane.leftovers() == []


async def test_learners_and_keys_of_a_job_without_a_document_are_removed(
    plane: ControlPlane, collector: Collector
) -> None:
    await learner_of(plane, "jghost", attempt=4, term=9)
    await plane.status.put("/jobs/jghost/attempt", "{}")
    await collector.collect(0)
    assert await collector.collect(0) == 2
    assert await plane.leftovers() == []


async def test_a_late_learner_of_a_released_attempt_is_removed(plane: ControlPlane, collector: Collector) -> None:
    lcm, pool = await plane.start_lcm(collect_s=10_000), await plane.start_pool()
    job_id = await plane.submit(retries={"max": 1, "backoff": "1h"})
    plane.helpers.fate(job_id, code=1)
    await plane.until(lambda job: job.counters.retries == 1 and not job.holds, job_id)
    await plane.kill(pool)
    await plane.kill(lcm)
    plane.cluster._jobs.pop(job_id)  # the cluster has lost its fence, too
    await learner_of(plane, job_id)
    term = (await plane.jobs.dispatcher()).term
    await collector.collect(term)
    assert await collector.collect(term) == 1
    assert plane.cluster.present() == []


async def test_keys_and_learners_of_a_running_job_are_kept(plane: ControlPlane, collector: Collector) -> None:
    await plane.start_lcm()
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=None)
    await plane.running(job_id)
    term = (await plane.jobs.dispatcher()).term
    for _ in range(3):
        assert await collector.collect(term) == 0
    assert plane.cluster.learner(job_id).state == "running"


async def test_a_job_admitted_between_two_collections_keeps_its_keys(plane: ControlPlane, collector: Collector) -> None:
    job_id = await plane.submit()
    await plane.status.put(f"/jobs/{job_id}/attempt", "{}")
    await collector.collect(0)
    assert collector._seen_twice("status", [job_id], []) == [job_id]
    lcm = await plane.start_lcm()
    await plane.reached(job_id, Status.PENDING)
    await plane.kill(lcm)
    assert await collector._remove("status", job_id) is False


@pytest.mark.parametrize("document", ["{", json.dumps({"schema": 99})])
async def test_a_document_that_cannot_be_read_protects_its_job(
    plane: ControlPlane, collector: Collector, document: str
) -> None:
    job_id = await plane.submit()
    await learner_of(plane, job_id)
    await plane.status.put(f"/jobs/{job_id}/attempt", "{}")
    plane.jobs.plant(job_id, document)
    for _ in range(3):
        assert await collector.collect(0) == 0
    assert plane.cluster.learner(job_id).state == "waiting"
    assert await plane.status.get(f"/jobs/{job_id}/attempt") is not None


async def test_a_job_of_which_nothing_exists_any_more_is_no_leftover(plane: ControlPlane, collector: Collector) -> None:
    assert await collector._remove("cluster", "jgone") is False
    await learner_of(plane, "jghost")
    assert await collector._remove("cluster", "jghost") is True
    assert plane.cluster.present() == []


async def test_only_the_leading_dispatcher_removes_leftovers(plane: ControlPlane, collector: Collector) -> None:
    await plane.status.put("/jobs/jghost/attempt", "{}")
    await collector.collect(0)
    await plane.jobs.replace_dispatcher(DispatcherDoc(), DispatcherDoc(term=5))
    with pytest.raises(StaleFence):
        await collector.collect(0)
    assert await plane.status.get("/jobs/jghost/attempt") is not None


async def test_leftovers_are_removed_after_the_status_store_returns(plane: ControlPlane) -> None:
    await plane.start_lcm(Tripwire(at=("status.delete_prefix", 1), what="cut"))
    await plane.status.put("/jobs/jghost/attempt", "{}")
    await asyncio.sleep(50)
    assert await plane.leftovers() == []


class StuckPods(MemoryCluster):
    """The pods of these jobs do not end."""

    def __init__(self, plane: ControlPlane, stuck: Collection[str]) -> None:
        super().__init__(plane.cluster.nodes, now_ms=plane.clock.now_ms)
        self.stuck = stuck
        self.tried: list[str] = []

    async def teardown(self, job_id: str, *, attempt: int, term: int) -> None:
        self.tried.append(job_id)
        if job_id in self.stuck:
            raise Unavailable("pods do not end")
        await super().teardown(job_id, attempt=attempt, term=term)


async def test_a_pod_that_does_not_end_keeps_no_other_job_s_leftovers(plane: ControlPlane) -> None:
    plane.cluster = StuckPods(plane, {"jb"})
    collector = Collector(plane.jobs, plane.status, plane.cluster, Instrumentation(CollectorRegistry()))
    for job_id in ("ja", "jb", "jc", "jd"):
        await learner_of(plane, job_id)
    await collector.collect(0)
    with capture_logs() as logs:
        assert await collector.collect(0) == 3
    assert plane.cluster.present() == ["jb"]
    assert [(entry["job"], entry["why"]) for entry in logs if entry["event"] == "leftover.not_removed"] == [
        ("jb", "pods do not end")
    ]


async def test_a_collection_ends_after_three_failures_in_a_row_and_the_next_one_begins_after_them(
    plane: ControlPlane,
) -> None:
    plane.cluster = cluster = StuckPods(plane, {"ja", "jb", "jc"})
    collector = Collector(plane.jobs, plane.status, cluster, Instrumentation(CollectorRegistry()))
    for job_id in ("ja", "jb", "jc", "jd"):
        await learner_of(plane, job_id)
    await collector.collect(0)
    with pytest.raises(Unavailable):
        await collector.collect(0)
    assert cluster.tried == ["ja", "jb", "jc"]
    cluster.tried.clear()
    with pytest.raises(Unavailable):
        await collector.collect(0)
    assert (cluster.tried, cluster.present()) == (["jd", "ja", "jb", "jc"], ["ja", "jb", "jc"])
    cluster.stuck = ()
    assert await collector.collect(0) == 3


async def test_the_life_cycle_manager_removes_leftovers_periodically(plane: ControlPlane) -> None:
    await plane.start_lcm()
    await learner_of(plane, "jghost")
    await plane.status.put("/jobs/jghost/attempt", "{}")
    await asyncio.sleep(25)
    assert await plane.leftovers() == []
