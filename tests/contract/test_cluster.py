"""What every Cluster does: the gang starts wholly, ends as told, and leaves nothing. Over the real node agent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.adapters.local.cluster import LocalCluster
from services.core.domain.errors import InvalidRequest, ResourceExhausted, StaleFence
from services.core.domain.plan import AttemptPlan
from services.core.ports.cluster import Cluster, LearnerProcess
from tests.testbed.node import NodeProcess, living_with, node_process, plan
from tests.waiting import HANG_S, tries_within, until

FOREVER = "exec sleep 1000"


@pytest.fixture(scope="module", params=["process", "sandbox"])
def node(request: pytest.FixtureRequest) -> Generator[NodeProcess]:
    """With either isolation. Without bubblewrap the second fails and says so: it is part of what we promise."""
    with node_process({"WEFT_NODE_ISOLATION": request.param}) as one:
        yield one


@pytest.fixture
async def cluster(node: NodeProcess) -> AsyncGenerator[LocalCluster]:
    one = await node.cluster()
    yield one
    await one.close()


async def start(cluster: Cluster, of: AttemptPlan) -> None:
    for step in cluster.steps():
        await cluster.do(step, of)


async def learners(cluster: Cluster, of: AttemptPlan) -> dict[str, LearnerProcess]:
    seen = await cluster.observe(of.job)
    return {one.name: one for one in seen.learners if one.attempt == of.attempt}


async def all_in(cluster: Cluster, of: AttemptPlan, state: str) -> dict[str, LearnerProcess]:
    async def reached() -> dict[str, LearnerProcess]:
        seen = await learners(cluster, of)
        return seen if seen and all(one.state == state for one in seen.values()) else {}

    return dict(await until(reached))


async def stop(cluster: Cluster, of: AttemptPlan, cause: str, grace_ms: int) -> None:
    await cluster.stop(of.job, attempt=of.attempt, term=of.term, generation=2, cause=cause, grace_ms=grace_ms)


async def away(cluster: Cluster, of: AttemptPlan) -> None:
    await cluster.teardown(of.job, attempt=of.attempt, term=of.term)


async def test_the_tier_is_told(cluster: Cluster, node: NodeProcess) -> None:
    (machine,) = await cluster.capacity()
    assert machine.labels == {"weft.dev/isolation": node.isolation}


async def test_capacity_is_what_was_declared_and_detected(cluster: Cluster) -> None:
    (machine,) = await cluster.capacity()
    assert (machine.name, machine.gpus, machine.ready) == ("local", 4, True)
    assert machine.cpus == len(os.sched_getaffinity(0))
    assert 2**28 < machine.memory < 2**50


async def test_a_gang_of_two_starts_and_each_knows_who_it_is(cluster: Cluster, node: NodeProcess) -> None:
    gang = plan(['echo "$WEFT_RANK of $WEFT_WORLD_SIZE"'] * 2)
    await start(cluster, gang)
    seen = await all_in(cluster, gang, "exited")
    assert [(one.exit.code, one.exit.natural) for one in seen.values() if one.exit] == [(0, True)] * 2
    assert [node.output(gang, rank) for rank in (0, 1)] == ["0 of 2\n", "1 of 2\n"]
    await away(cluster, gang)


async def test_nothing_runs_before_the_last_step(cluster: Cluster) -> None:
    gang = plan([FOREVER] * 2)
    for step in cluster.steps()[:-1]:
        await cluster.do(step, gang)
    assert {one.state for one in (await learners(cluster, gang)).values()} == {"inert"}
    await cluster.do(cluster.steps()[-1], gang)
    seen = await all_in(cluster, gang, "running")
    assert all(one.pid and one.started and one.run == 1 for one in seen.values())
    await away(cluster, gang)


async def test_every_step_may_be_repeated_and_nothing_starts_twice(cluster: Cluster) -> None:
    gang = plan([FOREVER] * 2)
    for step in cluster.steps():
        for _ in range(3):
            await cluster.do(step, gang)
    first = await all_in(cluster, gang, "running")
    await start(cluster, gang)
    assert await learners(cluster, gang) == first
    place = f"{gang.job}/1/worker-0/job"
    assert len(await until(lambda: living_with(place, program="sleep"))) == 1
    await away(cluster, gang)


async def test_steps_side_by_side_do_no_harm(cluster: Cluster) -> None:
    gang = plan([FOREVER] * 3)
    await cluster.do("reserve", gang)
    await asyncio.gather(*(cluster.do(step, gang) for step in ("learners", "activate", "learners", "activate")))
    assert len(await all_in(cluster, gang, "running")) == 3
    await away(cluster, gang)


async def test_how_a_process_ended_is_told(cluster: Cluster) -> None:
    gang = plan(["exit 0", "exit 3", "kill -SEGV $$", "no-such-program"])
    await start(cluster, gang)
    seen = await all_in(cluster, gang, "exited")
    ends = [(one.exit.code, one.exit.signal, one.exit.stop_cause) for one in seen.values() if one.exit]
    assert ends == [(0, None, ""), (3, None, ""), (None, 11, ""), (127, None, "")]
    await away(cluster, gang)


async def test_a_halt_leaves_the_learner_its_grace(cluster: Cluster, node: NodeProcess) -> None:
    saves = (
        'trap "test -e $JOB_STATE_DIR/stop-requested && echo saved; exit 9" TERM; echo up; while :; do sleep 0.01; done'
    )
    gang = plan([saves])
    await start(cluster, gang)
    await until(lambda: node.output(gang) == "up\n")
    await stop(cluster, gang, "halt", 20_000)
    end = (await all_in(cluster, gang, "exited"))["worker-0"].exit
    assert end is not None
    assert (end.code, end.stop_cause, node.output(gang)) == (9, "halt", "up\nsaved\n")
    await away(cluster, gang)


async def test_a_program_below_a_shell_has_its_grace_although_the_shell_is_gone(
    cluster: Cluster, node: NodeProcess
) -> None:
    # The shell dies of SIGTERM at once; the program is still saving.
    program = "trap '' TERM; echo up; while [ ! -e $JOB_STATE_DIR/stop-requested ]; do :; done; sleep 0.2; echo saved"
    gang = plan([f"sh -c '{program.replace(chr(39), chr(34))}'; echo not reached"])
    await start(cluster, gang)
    await until(lambda: node.output(gang) == "up\n")
    await stop(cluster, gang, "halt", 20_000)
    end = (await all_in(cluster, gang, "exited"))["worker-0"].exit
    assert end is not None
    assert (end.signal, end.stop_cause, node.output(gang)) == (15, "halt", "up\nsaved\n")
    await away(cluster, gang)


async def test_who_ignores_the_request_is_killed_when_its_grace_is_over(cluster: Cluster, node: NodeProcess) -> None:
    gang = plan(["trap '' TERM; echo up; while :; do sleep 0.01; done"])
    await start(cluster, gang)
    await until(lambda: node.output(gang) == "up\n")
    await stop(cluster, gang, "deadline", 100)
    end = (await all_in(cluster, gang, "exited"))["worker-0"].exit
    assert end is not None
    assert (end.signal, end.stop_cause) == (9, "deadline")
    await away(cluster, gang)


async def test_a_kill_ends_a_halt_that_takes_its_time(cluster: Cluster, node: NodeProcess) -> None:
    gang = plan(["trap '' TERM; echo up; while :; do sleep 0.01; done"] * 2)
    await start(cluster, gang)
    await until(lambda: node.output(gang, 0) == node.output(gang, 1) == "up\n")
    await stop(cluster, gang, "halt", 60_000)
    await stop(cluster, gang, "kill", 0)
    await stop(cluster, gang, "halt", 60_000)  # weaker: changes nothing
    seen = await all_in(cluster, gang, "exited")
    assert [(one.exit.signal, one.exit.stop_cause) for one in seen.values() if one.exit] == [(9, "kill")] * 2
    await away(cluster, gang)


async def test_a_kill_is_done_well_within_a_second(cluster: Cluster, node: NodeProcess) -> None:
    for stopwatch in tries_within(1.0):
        gang = plan(["trap '' TERM; sleep 1000 & sleep 1000 & echo up; wait"] * 4)
        await start(cluster, gang)
        await until(lambda: [node.output(gang, rank) for rank in range(4)] == ["up\n"] * 4)  # noqa: B023 - in this round
        with stopwatch:
            await stop(cluster, gang, "kill", 0)
            await away(cluster, gang)
        assert living_with(gang.job) == []


async def test_who_had_ended_before_the_stop_ended_by_itself(cluster: Cluster) -> None:
    gang = plan(["exit 0", FOREVER])
    await start(cluster, gang)

    async def one_has_ended() -> bool:
        return (await learners(cluster, gang))["worker-0"].state == "exited"

    await until(one_has_ended)
    await stop(cluster, gang, "halt", 1000)
    seen = await all_in(cluster, gang, "exited")
    assert [one.exit.stop_cause for one in seen.values() if one.exit] == ["", "halt"]
    await away(cluster, gang)


@pytest.mark.parametrize("last", ["reserve", "learners"])
async def test_who_is_stopped_before_it_ran_never_runs(cluster: Cluster, node: NodeProcess, last: str) -> None:
    gang = plan(["echo ran"] * 2)
    for step in cluster.steps()[: cluster.steps().index(last) + 1]:
        await cluster.do(step, gang)
    await stop(cluster, gang, "halt", 1000)
    seen = await all_in(cluster, gang, "exited")
    assert [(one.run, one.exit.stop_cause) for one in seen.values() if one.exit] == [(0, "halt")] * 2
    await start(cluster, gang)  # a late repetition
    seen = await all_in(cluster, gang, "exited")
    assert node.output(gang) == ""
    await away(cluster, gang)


async def test_whatever_a_learner_leaves_behind_is_ended(cluster: Cluster) -> None:
    daemons = "setsid sleep 1001 & (sleep 1002 &) & (setsid sh -c 'sleep 1003 & sleep 1004' &) ; sleep 0.1"
    gang = plan([daemons, f"{daemons}; {FOREVER}"])
    await start(cluster, gang)

    async def first() -> bool:
        return (await learners(cluster, gang))["worker-0"].state == "exited"

    await until(first)
    assert living_with(f"{gang.job}/1/worker-0/job") == []
    await stop(cluster, gang, "kill", 0)
    await all_in(cluster, gang, "exited")
    assert living_with(f"{gang.job}/1/worker-1/job") == []
    await away(cluster, gang)


async def test_a_teardown_leaves_nothing_even_of_a_running_gang(cluster: Cluster, node: NodeProcess) -> None:
    makes = "mkdir -m 0 locked; cd $RESULT_DIR; mkdir x; touch x/y; chmod 0 x; echo up; exec sleep 1000"
    gang = plan([makes] * 2)
    await start(cluster, gang)
    await until(lambda: node.output(gang, 0) == node.output(gang, 1) == "up\n")
    await away(cluster, gang)
    assert await cluster.observe(gang.job) == type(await cluster.observe(gang.job))(learners=[], attempts=[])
    assert living_with(gang.job) == []
    assert not (node.home / "node" / gang.job).exists()
    await away(cluster, gang)


async def test_a_teardown_takes_earlier_attempts_with_it(cluster: Cluster) -> None:
    old = plan([FOREVER])
    await start(cluster, old)
    new = replace(old, attempt=2, term=2)
    await start(cluster, new)
    assert (await cluster.observe(old.job)).attempts == [1, 2]
    await away(cluster, new)
    assert (await cluster.observe(old.job)).attempts == []
    assert living_with(old.job) == []


async def test_what_is_of_the_past_is_refused(cluster: Cluster) -> None:
    gang = plan([FOREVER], attempt=2, term=5)
    await start(cluster, gang)
    for attempt, term in ((2, 4), (1, 5), (1, 9)):
        old = replace(gang, attempt=attempt, term=term)
        with pytest.raises(StaleFence):
            await cluster.do("reserve", old)
        with pytest.raises(StaleFence):
            await stop(cluster, old, "kill", 0)
        with pytest.raises(StaleFence):
            await away(cluster, old)
    assert (await learners(cluster, gang))["worker-0"].state != "exited"
    await away(cluster, replace(gang, term=6))


async def test_a_late_step_does_not_bring_back_what_was_torn_down(cluster: Cluster) -> None:
    gang = plan([FOREVER])
    await start(cluster, gang)
    await away(cluster, gang)
    for step in cluster.steps():
        with pytest.raises(StaleFence):
            await cluster.do(step, gang)
    successor = replace(gang, term=2)
    await cluster.do("reserve", successor)
    await away(cluster, successor)


async def test_a_gang_that_does_not_fit_gets_nothing(cluster: Cluster, node: NodeProcess) -> None:
    first = plan([FOREVER] * 3, gpus=1)
    await cluster.do("reserve", first)
    second = plan([FOREVER] * 2, gpus=1)
    with pytest.raises(ResourceExhausted, match="1 of 4 are free"):
        await cluster.do("reserve", second)
    assert (await cluster.observe(second.job)).attempts == []
    await away(cluster, first)
    await cluster.do("reserve", second)
    assert [node.read(second, "learner.json", rank)["gpus"] for rank in (0, 1)] == [[0], [1]]
    await away(cluster, second)


async def test_a_learner_sees_its_gpus_only(cluster: Cluster, node: NodeProcess) -> None:
    gang = plan(['echo "$CUDA_VISIBLE_DEVICES $GPU_COUNT"'] * 2, gpus=2)
    await start(cluster, gang)
    await all_in(cluster, gang, "exited")
    assert [node.output(gang, rank) for rank in (0, 1)] == ["0,1 2\n", "2,3 2\n"]
    await away(cluster, gang)


async def test_what_is_wrong_in_a_call_is_said(cluster: Cluster) -> None:
    with pytest.raises(InvalidRequest, match="no step 'dance'"):
        await cluster.do("dance", plan([FOREVER]))
    with pytest.raises(InvalidRequest, match="not been reserved"):
        await cluster.do("learners", plan([FOREVER]))
    with pytest.raises(InvalidRequest, match="cannot be the name"):
        await cluster.do("reserve", plan([FOREVER], job="../x"))


async def test_watchers_hear_of_an_end(cluster: Cluster) -> None:
    gang = plan(["true"])
    async with aclosing(cluster.watch()) as changes:  # type: ignore[type-var]
        assert await anext(changes) == ""
        await start(cluster, gang)
        async with asyncio.timeout(HANG_S):
            while await anext(changes) != gang.job:
                pass
    await away(cluster, gang)


async def test_a_learner_finds_its_environment_and_nothing_of_ours(cluster: Cluster, node: NodeProcess) -> None:
    command = "env; pwd; umask; ulimit -c; python3 -c 'import weft; weft.report(step=1, loss=0.5)'; cat; echo end"
    gang = plan([command], env={"MINE": "a b", "PYTHONPATH": "/x"})
    await start(cluster, gang)
    await all_in(cluster, gang, "exited")
    lines = node.output(gang).splitlines()
    job = node.folder(gang) / "job"
    assert {f"HOME={job}/home", f"MODEL_DIR={job}/model-code", "MINE=a b", f"PYTHONPATH={node.home / 'sdk'}:/x"} <= {
        *lines
    }
    assert lines[-4:] == [f"{job}/model-code", "0022", "0", "end"]
    assert not [line for line in lines if line.startswith(("WEFT_HOME", "WEFT_NODE"))]
    assert '"loss":0.5' in (job / "metrics.jsonl").read_text()
    assert node.output(gang, stream="stderr") == ""
    await away(cluster, gang)


async def test_learners_cannot_read_what_is_not_theirs(cluster: Cluster, node: NodeProcess) -> None:
    victim = plan(["echo private > $RESULT_DIR/x; exec sleep 1000"])
    await start(cluster, victim)
    await until((node.folder(victim) / "job/results/x").exists)
    theirs = node.folder(victim)
    spy = plan([f"id -u; cd {theirs}; cat job/results/x learner.json runs/1/stdout $JOB_STATE_DIR/../learner.json"])
    await start(cluster, spy)
    await all_in(cluster, spy, "exited")
    uid, *read = node.output(spy).splitlines()
    if os.geteuid() == 0:
        assert 70_000 <= int(uid) < 80_000
        assert int(uid) != node.read(victim, "learner.json")["uid"]
    else:
        assert int(uid) == os.getuid()
    if node.isolation == "sandbox":
        assert read == []
        assert node.output(spy, stream="stderr").count("No such file or directory") == 4
    elif os.geteuid() == 0:
        assert read == []
        assert node.output(spy, stream="stderr").count("Permission denied") == 4
    assert "secret-of-1" not in Path(node.folder(victim) / "learner.json").read_text()
    await away(cluster, spy)
    await away(cluster, victim)
