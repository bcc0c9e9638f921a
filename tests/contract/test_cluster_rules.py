"""The rules of the Cluster port that need no process to show: the node agent and the one in memory keep them alike.

What a learner's process does and suffers is in test_cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from dataclasses import replace

import pytest

from services.core.domain.errors import InvalidRequest, StaleFence
from services.core.domain.plan import AttemptPlan
from services.core.ports.cluster import Cluster, Node
from tests.testbed.memory.cluster import MemoryCluster
from tests.testbed.node import NodeProcess, node_process, plan
from tests.waiting import HANG_S, until

FOREVER = "exec sleep 1000"


@pytest.fixture(scope="module")
def node() -> Generator[NodeProcess]:
    with node_process() as one:
        yield one


@pytest.fixture(params=["local", "memory"])
async def cluster(request: pytest.FixtureRequest) -> AsyncGenerator[Cluster]:
    if request.param == "memory":
        machine = Node(name="local", cpus=4, memory=2**32, gpus=4)
        one: Cluster = MemoryCluster([machine], now_ms=lambda: time.time_ns() // 1_000_000)
    else:
        one = await request.getfixturevalue("node").cluster()
    yield one
    await one.close()


async def start(cluster: Cluster, of: AttemptPlan) -> None:
    for step in cluster.steps():
        await cluster.do(step, of)


async def away(cluster: Cluster, of: AttemptPlan) -> None:
    await cluster.teardown(of.job, attempt=of.attempt, term=of.term)


async def stop(cluster: Cluster, of: AttemptPlan, cause: str = "kill", grace_ms: int = 0) -> None:
    await cluster.stop(of.job, attempt=of.attempt, term=of.term, generation=1, cause=cause, grace_ms=grace_ms)


async def states(cluster: Cluster, of: AttemptPlan) -> list[str]:
    return sorted(one.state for one in (await cluster.observe(of.job)).learners if one.attempt == of.attempt)


async def test_a_cluster_that_answers_is_pinged_and_has_ready_nodes(cluster: Cluster) -> None:
    await cluster.ping()
    assert [one.name for one in await cluster.capacity() if one.ready] == ["local"]


async def test_what_nobody_asked_for_is_not_there(cluster: Cluster) -> None:
    seen = await cluster.observe("jnobody")
    assert (list(seen.learners), list(seen.attempts)) == ([], [])
    await cluster.stop("jnobody", attempt=1, term=1, generation=1, cause="kill", grace_ms=0)
    await cluster.teardown("jnobody", attempt=1, term=1)


async def test_nothing_is_let_go_before_the_last_step(cluster: Cluster) -> None:
    gang = plan([FOREVER] * 2)
    for step in cluster.steps()[:-1]:
        await cluster.do(step, gang)
    assert await states(cluster, gang) == ["inert"] * 2
    await cluster.do(cluster.steps()[-1], gang)
    assert "inert" not in await states(cluster, gang)
    await away(cluster, gang)


async def test_a_step_before_its_time_or_of_no_plan_is_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidRequest, match="no step 'dance'"):
        await cluster.do("dance", plan([FOREVER]))
    with pytest.raises(InvalidRequest, match="not been reserved"):
        await cluster.do("activate", plan([FOREVER]))


async def test_a_job_is_known_for_as_long_as_anything_of_it_exists(cluster: Cluster) -> None:
    gang = plan([FOREVER])
    assert gang.job not in await cluster.jobs()
    await cluster.do("reserve", gang)
    assert gang.job in await cluster.jobs()
    await away(cluster, gang)
    assert gang.job not in await cluster.jobs()


@pytest.mark.parametrize("last", ["reserve", "learners"])
async def test_who_is_stopped_before_it_was_let_go_has_ended_without_running(cluster: Cluster, last: str) -> None:
    gang = plan([FOREVER] * 2)
    for step in cluster.steps()[: cluster.steps().index(last) + 1]:
        await cluster.do(step, gang)
    await stop(cluster, gang, "halt", 1000)

    async def all_over() -> bool:
        return await states(cluster, gang) == ["exited"] * 2

    await until(all_over)
    await start(cluster, gang)  # a late repetition
    seen = (await cluster.observe(gang.job)).learners
    assert [(one.run, one.started) for one in seen] == [(0, None)] * 2
    assert [(one.exit.stop_cause, one.exit.natural) for one in seen if one.exit] == [("halt", False)] * 2
    await away(cluster, gang)


async def test_a_weaker_stop_changes_nothing_and_a_stronger_one_does(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    gang = plan(["trap '' TERM; echo up; while :; do sleep 0.01; done"])
    await start(cluster, gang)
    if isinstance(cluster, MemoryCluster):
        cluster.learner(gang.job).on_term = None
        cluster.learner(gang.job).start()
    else:
        node: NodeProcess = request.getfixturevalue("node")
        await until(lambda: node.output(gang) == "up\n")  # before its trap, the first SIGTERM would end it
    assert await states(cluster, gang) == ["running"]
    await stop(cluster, gang, "halt", 60_000)
    await stop(cluster, gang, "peer", 90_000)
    await stop(cluster, gang, "kill", 0)
    await stop(cluster, gang, "halt", 60_000)

    async def killed() -> bool:
        (one,) = (await cluster.observe(gang.job)).learners
        return one.exit is not None and (one.exit.signal, one.exit.stop_cause) == (9, "kill")

    await until(killed)
    await away(cluster, gang)


async def test_what_is_of_the_past_is_refused(cluster: Cluster) -> None:
    gang = plan([FOREVER], attempt=2, term=5)
    await start(cluster, gang)
    for attempt, term in ((2, 4), (1, 5), (1, 9)):
        old = replace(gang, attempt=attempt, term=term)
        for call in (cluster.do("reserve", old), stop(cluster, old), away(cluster, old)):
            with pytest.raises(StaleFence):
                await call
    assert "exited" not in await states(cluster, gang)
    await away(cluster, replace(gang, term=6))


async def test_a_late_step_does_not_bring_back_what_was_torn_down(cluster: Cluster) -> None:
    gang = plan([FOREVER])
    await start(cluster, gang)
    await away(cluster, gang)
    for step in cluster.steps():
        with pytest.raises(StaleFence):
            await cluster.do(step, gang)
    await away(cluster, gang)  # of what is gone it may be said again
    successor = replace(gang, term=2)
    await cluster.do("reserve", successor)
    await away(cluster, successor)
    assert gang.job not in await cluster.jobs()


async def test_a_teardown_takes_earlier_attempts_with_it(cluster: Cluster) -> None:
    old = plan([FOREVER])
    await start(cluster, old)
    await start(cluster, replace(old, attempt=2, term=2))
    assert (await cluster.observe(old.job)).attempts == [1, 2]
    await away(cluster, replace(old, attempt=2, term=2))
    assert (await cluster.observe(old.job)).attempts == []


async def test_watchers_are_told_to_look_at_all_and_then_what_changed(cluster: Cluster) -> None:
    gang = plan([FOREVER])
    async with aclosing(cluster.watch()) as changes:  # type: ignore[type-var]
        assert await anext(changes) == ""
        await start(cluster, gang)
        await away(cluster, gang)
        async with asyncio.timeout(HANG_S):
            while await anext(changes) != gang.job:
                pass
