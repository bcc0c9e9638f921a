"""Where the cluster's own scheduler chooses the nodes, the dispatcher charges those that the learners were bound to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from services.core.domain.status import PendingReason, Status
from services.core.ports.cluster import Node
from tests.testbed.control_plane import ControlPlane, Process
from tests.testbed.memory.cluster import Blocked, MemoryLearner

pytestmark = pytest.mark.looptime(noop_cycles=0)
NODES = tuple(Node(name=name, cpus=8, memory=64 * 10**9, gpus=0) for name in ("a", "b"))
WHOLE_NODE = {"resources": {"cpus": 8, "memory": "1GB"}}
HALF_NODE = {"resources": {"cpus": 4, "memory": "1GB"}}


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncGenerator[ControlPlane]:
    plane = ControlPlane(tmp_path, nodes=NODES)
    yield plane
    await plane.close()


def bind_to(plane: ControlPlane, **nodes: str) -> None:
    """The scheduler takes these nodes for learners, by name, and the dispatcher's for all others."""

    def bind(learner: MemoryLearner) -> str:
        return nodes.get(learner.name.replace("-", "_"), learner.plan.node)

    plane.cluster.bind = bind


def usage(process: Process) -> dict[str, float]:
    """Node -> CPUs that are charged."""
    return {entry.node.name: entry.used.cpus for entry in process.service._snapshot.usage()}


async def test_a_gang_is_admitted_on_the_node_that_the_scheduler_did_not_take(plane: ControlPlane) -> None:
    await plane.start_lcm()
    await plane.start_pool()
    bind_to(plane, worker_0="b")
    first = await plane.submit(**WHOLE_NODE)
    plane.helpers.fate(first, run_s=None)
    assert (await plane.running(first)).attempt.placement == {"worker-0": "b"}
    bind_to(plane)
    second = await plane.submit(**WHOLE_NODE)
    plane.helpers.fate(second, run_s=None)
    assert (await plane.running(second)).attempt.placement == {"worker-0": "a"}


async def test_a_gang_waits_while_the_node_that_the_scheduler_took_is_full(plane: ControlPlane) -> None:
    """Else it would be admitted there, fail as Unschedulable again and again, and be FAILED."""
    process = await plane.start_lcm()
    await plane.start_pool()
    bind_to(plane, worker_0="b", worker_1="a")
    first = await plane.submit(learners=2, **HALF_NODE)
    plane.helpers.fate(first, run_s=40)
    assert (await plane.running(first)).attempt.placement == {"worker-0": "b", "worker-1": "a"}
    bind_to(plane)
    second = await plane.submit(**WHOLE_NODE)
    await asyncio.sleep(5)
    assert (await plane.job(second)).status is Status.QUEUED
    assert process.service.waiting[second].pending_reason is PendingReason.WAITING_FOR_CAPACITY
    assert usage(process) == {"a": 4, "b": 4}
    assert (await plane.rested(second, within_s=120)).status is Status.COMPLETED


async def test_bound_nodes_are_charged_while_images_are_pulled(plane: ControlPlane) -> None:
    await plane.start_lcm()
    await plane.start_pool()
    bind_to(plane, worker_0="b")
    plane.cluster.blocked["worker-0", 1] = Blocked("ImagePull", "the image is being pulled")
    first = await plane.submit(**WHOLE_NODE)
    job = await plane.until(lambda job: job.attempt.placement == {"worker-0": "b"}, first)
    assert not job.attempt.committed


async def test_a_learner_that_is_started_again_elsewhere_is_charged_there(plane: ControlPlane) -> None:
    process = await plane.start_lcm()
    await plane.start_pool()
    job_id = await plane.submit(roles={"worker": {"count": 2, "on_failure": "restart"}}, **HALF_NODE)
    plane.helpers.fate(job_id, run_s=None)
    placed = (await plane.running(job_id)).attempt.placement
    assert placed == {"worker-0": "a", "worker-1": "a"}
    bind_to(plane, worker_1="b")
    plane.cluster.drop(plane.cluster.learner(job_id, "worker-1"))
    job = await plane.until(lambda job: job.attempt.placement["worker-1"] == "b", job_id)
    assert (job.attempt.placement, job.attempt.number) == ({"worker-0": "a", "worker-1": "b"}, 1)
    await asyncio.sleep(3)
    assert usage(process) == {"a": 4, "b": 4}


async def test_a_learner_on_a_node_that_is_not_listed_takes_no_other_node(plane: ControlPlane) -> None:
    await plane.start_lcm()
    await plane.start_pool()
    bind_to(plane, worker_0="unlisted")
    first = await plane.submit(**WHOLE_NODE)
    plane.helpers.fate(first, run_s=None)
    await plane.running(first)
    bind_to(plane)
    second = await plane.submit(learners=2, **WHOLE_NODE)
    assert (await plane.rested(second)).status is Status.COMPLETED
