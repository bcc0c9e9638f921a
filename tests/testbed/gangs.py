"""A Cluster's calls for a whole gang, in the order in which the Guardian makes them."""

from __future__ import annotations

from contextlib import suppress

from services.core.domain.errors import Unavailable
from services.core.domain.learner import Exit
from services.core.domain.plan import AttemptPlan
from services.core.ports.cluster import Cluster, LearnerProcess, Observation
from tests.waiting import until


async def start(cluster: Cluster, gang: AttemptPlan) -> None:
    """Carries out all steps. Returns before the processes run."""
    for step in cluster.steps():
        await cluster.do(step, gang)


async def stop(cluster: Cluster, gang: AttemptPlan, cause: str = "kill", grace_ms: int = 0) -> None:
    await cluster.stop(gang.job, attempt=gang.attempt, term=gang.term, generation=2, cause=cause, grace_ms=grace_ms)


async def teardown(cluster: Cluster, gang: AttemptPlan) -> None:
    await cluster.teardown(gang.job, attempt=gang.attempt, term=gang.term)


async def observe(cluster: Cluster, gang: AttemptPlan) -> Observation:
    """What the cluster shows of the job. Repeated, as a Guardian does, while a busy machine answers too late."""

    async def answered() -> Observation | None:
        with suppress(Unavailable):
            return await cluster.observe(gang.job)
        return None

    observation = await until(answered)
    assert observation is not None
    return observation


async def learners(cluster: Cluster, gang: AttemptPlan) -> dict[str, LearnerProcess]:
    """Those of this attempt, by name."""
    observation = await observe(cluster, gang)
    return {learner.name: learner for learner in observation.learners if learner.attempt == gang.attempt}


async def learner(cluster: Cluster, gang: AttemptPlan, rank: int = 0) -> LearnerProcess:
    return (await learners(cluster, gang))[gang.learners[rank].name]


async def states(cluster: Cluster, gang: AttemptPlan) -> list[str]:
    return sorted(learner.state for learner in (await learners(cluster, gang)).values())


async def await_all(cluster: Cluster, gang: AttemptPlan, state: str) -> dict[str, LearnerProcess]:
    """Waits until all learners are in the state. Returns them by name."""

    async def reached() -> dict[str, LearnerProcess]:
        present = await learners(cluster, gang)
        return present if present and all(learner.state == state for learner in present.values()) else {}

    return dict(await until(reached))


async def await_state(cluster: Cluster, gang: AttemptPlan, state: str, rank: int = 0) -> LearnerProcess:
    """Waits until this learner is in the state."""

    async def reached() -> LearnerProcess | None:
        present = await learner(cluster, gang, rank)
        return present if present.state == state else None

    process = await until(reached)
    assert process is not None
    return process


async def await_exit(cluster: Cluster, gang: AttemptPlan, rank: int = 0) -> Exit:
    """Waits until this learner has ended."""
    end = (await await_state(cluster, gang, "exited", rank)).exit
    assert end is not None
    return end
