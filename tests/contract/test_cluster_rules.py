"""The contract of a Cluster without real processes: the same for the node agent and the cluster in memory.

Tests with real processes are in test_cluster, those with pods in tests/cluster.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator
from functools import partial

import pytest

from services.core.domain.plan import AttemptPlan
from services.core.ports.cluster import Cluster, Node
from tests.testbed.cluster_rules import *  # noqa: F403 - the tests
from tests.testbed.cluster_rules import Scene, waits_for_the_end
from tests.testbed.memory.cluster import MemoryCluster
from tests.testbed.node import NodeProcess, node_process
from tests.waiting import until


@pytest.fixture(scope="module")
def node() -> Generator[NodeProcess]:
    with node_process() as running:
        yield running


@pytest.fixture(params=["local", "memory"])
async def scene(request: pytest.FixtureRequest) -> AsyncGenerator[Scene]:
    if request.param == "memory":
        machine = Node(name="local", cpus=4, memory=2**32, gpus=4)
        memory = MemoryCluster([machine], now_ms=lambda: time.time_ns() // 1_000_000)

        async def started_in_memory(gang: AttemptPlan) -> None:
            memory.learner(gang.job).on_term = None
            memory.learner(gang.job).start()

        async def ends_in_memory(gang: AttemptPlan) -> None:
            for entry in gang.learners:
                memory.learner(gang.job, entry.name).start()
            memory.learner(gang.job).end(3)

        yield Scene(memory, ["local"], started_in_memory, ends_in_memory)
        return
    agent: NodeProcess = request.getfixturevalue("node")

    async def prints_up(gang: AttemptPlan) -> None:
        await until(lambda: agent.output(gang) == "up\n")

    client = await agent.cluster()
    yield Scene(client, ["local"], prints_up, partial(waits_for_the_end, client))
    await client.close()


@pytest.fixture
def cluster(scene: Scene) -> Cluster:
    return scene.cluster
