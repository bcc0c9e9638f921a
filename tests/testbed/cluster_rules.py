"""The rules of the Cluster port that every adapter keeps, as tests. Test files import them:

    from tests.testbed.cluster_rules import *

Such a file defines the fixtures ``cluster`` and ``scene``, which names what differs between clusters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

import pytest

from services.core.domain.errors import InvalidRequest, StaleFence, Unavailable
from services.core.domain.plan import AttemptPlan
from services.core.ports.cluster import Cluster, Observation
from tests.testbed.gangs import await_exit, await_state, learner, start, states, stop, teardown
from tests.testbed.node import plan
from tests.waiting import HANG_S, until

FOREVER = "exec sleep 1000"


@dataclass(frozen=True)
class Scene:
    """A cluster without jobs."""

    cluster: Cluster
    nodes: list[str]
    """Names of its nodes, which are ready."""
    ignores_sigterm: Callable[[AttemptPlan], Awaitable[None]]
    """Returns once the started learners' processes, which print ``up``, ignore SIGTERM."""
    one_ends: Callable[[AttemptPlan], Awaitable[None]]
    """Returns once the process of rank 0 has exited with 3, and that of rank 1 runs."""


async def waits_for_the_end(cluster: Cluster, gang: AttemptPlan) -> None:
    """``Scene.one_ends`` of clusters with processes."""
    await await_exit(cluster, gang)
    await await_state(cluster, gang, "running", rank=1)


async def test_ping_succeeds_and_nodes_are_ready(scene: Scene) -> None:
    await scene.cluster.ping()

    async def all_ready() -> bool:
        return [node.name for node in await scene.cluster.capacity() if node.ready] == scene.nodes

    await until(all_ready)  # a new node of Kubernetes keeps its taint for a moment


async def test_an_unknown_job_has_no_learners_and_may_be_stopped_and_torn_down(cluster: Cluster) -> None:
    observation = await cluster.observe("jnobody")
    assert (list(observation.learners), list(observation.attempts)) == ([], [])
    await cluster.stop("jnobody", attempt=1, term=1, generation=1, cause="kill", grace_ms=0)
    await cluster.teardown("jnobody", attempt=1, term=1)


async def test_learners_are_inert_before_the_last_step(cluster: Cluster) -> None:
    gang = plan([FOREVER] * 2)
    for step in cluster.steps()[:-1]:
        await cluster.do(step, gang)
    assert await states(cluster, gang) == ["inert"] * 2
    await cluster.do(cluster.steps()[-1], gang)
    assert "inert" not in await states(cluster, gang)
    await teardown(cluster, gang)


async def test_unknown_steps_and_steps_out_of_order_are_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidRequest, match="no step 'dance'"):
        await cluster.do("dance", plan([FOREVER]))
    with pytest.raises(InvalidRequest, match="not been reserved"):
        await cluster.do("activate", plan([FOREVER]))


async def test_a_job_is_listed_while_anything_of_it_exists(cluster: Cluster) -> None:
    gang = plan([FOREVER])
    assert gang.job not in await cluster.jobs()
    await cluster.do("reserve", gang)
    assert gang.job in await cluster.jobs()
    await teardown(cluster, gang)
    assert gang.job not in await cluster.jobs()


@pytest.mark.parametrize("last", ["reserve", "learners"])
async def test_a_learner_that_is_stopped_before_activation_ends_without_running(cluster: Cluster, last: str) -> None:
    gang = plan([FOREVER] * 2)
    for step in cluster.steps()[: cluster.steps().index(last) + 1]:
        await cluster.do(step, gang)
    await stop(cluster, gang, "halt", 1000)

    async def all_over() -> bool:
        return await states(cluster, gang) == ["exited"] * 2

    await until(all_over)
    await start(cluster, gang)  # a late repetition
    present = (await cluster.observe(gang.job)).learners
    assert [(learner.run, learner.started) for learner in present] == [(0, None)] * 2
    assert [(learner.exit.stop_cause, learner.exit.natural) for learner in present if learner.exit] == [
        ("halt", False)
    ] * 2
    await teardown(cluster, gang)


async def test_a_stronger_stop_overrides_and_a_weaker_one_is_ignored(scene: Scene) -> None:
    cluster = scene.cluster
    gang = plan(["trap '' TERM; echo up; while :; do sleep 0.01; done"])
    await start(cluster, gang)
    await scene.ignores_sigterm(gang)  # before its trap, the first SIGTERM would end it
    assert await states(cluster, gang) == ["running"]
    await stop(cluster, gang, "halt", 60_000)
    await stop(cluster, gang, "peer", 90_000)
    await stop(cluster, gang, "kill", 0)
    await stop(cluster, gang, "halt", 60_000)

    async def killed() -> bool:
        (learner,) = (await cluster.observe(gang.job)).learners
        return learner.exit is not None and (learner.exit.signal, learner.exit.stop_cause) == (9, "kill")

    await until(killed)
    await teardown(cluster, gang)


async def test_a_learner_of_a_higher_run_replaces_the_one_that_has_ended_and_no_other(scene: Scene) -> None:
    cluster = scene.cluster
    gang = plan([f'[ "$WEFT_RANK" = 1 ] || exit 3; {FOREVER}'] * 2)
    await start(cluster, gang)
    await scene.one_ends(gang)
    other = await learner(cluster, gang, rank=1)
    first, second = gang.learners
    again = replace(gang, learners=(replace(first, run=2), second))
    await until(lambda: replaced(cluster, again))
    for _ in range(2):  # a run is made once
        await until(lambda: replaced(cluster, again))
    await scene.one_ends(gang)
    process = await learner(cluster, gang)
    assert process.exit is not None
    assert (process.planned_run, process.run, process.exit.code, process.exit.natural) == (2, 2, 3, True)
    now = await learner(cluster, gang, rank=1)
    assert (now.planned_run, now.started, now.state) == (1, other.started, "running")
    with pytest.raises(StaleFence):
        await cluster.do("learners", replace(gang, term=0))
    await teardown(cluster, gang)
    assert (await cluster.observe(gang.job)).attempts == []


async def replaced(cluster: Cluster, gang: AttemptPlan) -> bool:
    """Repeats the steps that start learners again. False while what is left of an earlier run is being removed."""
    try:
        for step in cluster.steps()[1:]:
            await cluster.do(step, gang)
    except Unavailable:
        return False
    return True


async def test_calls_with_a_lower_attempt_or_term_are_refused(cluster: Cluster) -> None:
    gang = plan([FOREVER], attempt=2, term=5)
    await start(cluster, gang)
    for attempt, term in ((2, 4), (1, 5), (1, 9)):
        old = replace(gang, attempt=attempt, term=term)
        for call in (cluster.do("reserve", old), stop(cluster, old), teardown(cluster, old)):
            with pytest.raises(StaleFence):
                await call
    assert "exited" not in await states(cluster, gang)
    await teardown(cluster, replace(gang, term=6))


async def test_a_late_step_makes_nothing_after_teardown(cluster: Cluster) -> None:
    gang = plan([FOREVER])
    await start(cluster, gang)
    await teardown(cluster, gang)
    for step in cluster.steps():
        with pytest.raises(StaleFence):
            await cluster.do(step, gang)
    await teardown(cluster, gang)  # may be repeated
    successor = replace(gang, term=2)
    await cluster.do("reserve", successor)
    await teardown(cluster, successor)
    assert gang.job not in await cluster.jobs()


async def test_teardown_removes_earlier_attempts(cluster: Cluster) -> None:
    old = plan([FOREVER])
    await start(cluster, old)
    await start(cluster, replace(old, attempt=2, term=2))
    assert (await cluster.observe(old.job)).attempts == [1, 2]
    await teardown(cluster, replace(old, attempt=2, term=2))
    assert (await cluster.observe(old.job)).attempts == []


async def test_cached_observations_and_listings_show_reported_changes_and_own_ones(scene: Scene) -> None:
    cluster, gang = scene.cluster, plan([f'[ "$WEFT_RANK" = 1 ] || exit 3; {FOREVER}'] * 2)

    async def cached() -> Observation:
        return await cluster.observe(gang.job, cached=True)

    async def is_listed() -> bool:
        return gang.job in await cluster.jobs(cached=True)

    async with aclosing(cluster.watch()) as changes:  # type: ignore[type-var]
        assert await anext(changes) == ""
        assert (await cached()).attempts == []
        await cluster.do("reserve", gang)
        assert (await cached()).attempts == [1]
        await until(is_listed)
        await start(cluster, gang)
        await until(is_listed)
        await scene.one_ends(gang)

        async def shows_the_end() -> bool:
            return {learner.state for learner in (await cached()).learners} == {"exited", "running"}

        async def agrees() -> bool:
            return await cached() == await cluster.observe(gang.job)

        await until(shows_the_end)
        await until(agrees)  # the learners may change between the two observations
        await stop(cluster, gang)

        async def shows_the_stop() -> bool:
            return {learner.state for learner in (await cached()).learners} == {"exited"}

        await until(shows_the_stop)
        await teardown(cluster, gang)
        assert (await cached()).attempts == []

        async def is_not_listed() -> bool:
            return not await is_listed()

        await until(is_not_listed)


async def test_watchers_get_an_empty_id_first_and_then_changed_jobs(cluster: Cluster) -> None:
    gang = plan([FOREVER])
    async with aclosing(cluster.watch()) as changes:  # type: ignore[type-var]
        assert await anext(changes) == ""
        await start(cluster, gang)
        await teardown(cluster, gang)
        async with asyncio.timeout(HANG_S):
            while await anext(changes) != gang.job:
                pass
