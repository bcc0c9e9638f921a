"""The contract of a Cluster, with real processes of the node agent: start of a gang, stops, ends, teardown."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.domain.errors import InvalidRequest, ResourceExhausted, Unavailable
from services.core.domain.plan import SCHEMA, Part, PartKind
from services.core.ports.cluster import Cluster
from tests.testbed.gangs import await_all, await_exit, await_state, learners, start, stop, teardown
from tests.testbed.node import NodeProcess, living_with, node_process, plan
from tests.waiting import HANG_S, tries_within, until

FOREVER = "exec sleep 1000"


@pytest.fixture(scope="module", params=["process", "sandbox"])
def node(request: pytest.FixtureRequest) -> Generator[NodeProcess]:
    """With both isolations. Without bubblewrap the second fails with the reason."""
    with node_process({"WEFT_NODE_ISOLATION": request.param}) as running:
        yield running


async def test_nodes_are_labelled_with_their_isolation(cluster: Cluster, node: NodeProcess) -> None:
    (machine,) = await cluster.capacity()
    assert machine.labels == {"weft.dev/isolation": node.isolation}


async def test_capacity_is_declared_or_detected(cluster: Cluster) -> None:
    (machine,) = await cluster.capacity()
    assert (machine.name, machine.gpus, machine.ready) == ("local", 4, True)
    assert machine.cpus == len(os.sched_getaffinity(0))
    assert 2**28 < machine.memory < 2**50


async def test_a_gang_of_two_starts_with_rank_and_world_size(cluster: Cluster, node: NodeProcess) -> None:
    gang = plan(['echo "$WEFT_RANK of $WEFT_WORLD_SIZE"'] * 2)
    await start(cluster, gang)
    processes = await await_all(cluster, gang, "exited")
    assert [(process.exit.code, process.exit.natural) for process in processes.values() if process.exit] == [
        (0, True)
    ] * 2
    assert [node.output(gang, rank) for rank in (0, 1)] == ["0 of 2\n", "1 of 2\n"]
    await teardown(cluster, gang)


async def test_no_process_runs_before_the_last_step(cluster: Cluster) -> None:
    gang = plan([FOREVER] * 2)
    for step in cluster.steps()[:-1]:
        await cluster.do(step, gang)
    assert {process.state for process in (await learners(cluster, gang)).values()} == {"inert"}
    await cluster.do(cluster.steps()[-1], gang)
    processes = await await_all(cluster, gang, "running")
    assert all(process.pid and process.started and process.run == 1 for process in processes.values())
    await teardown(cluster, gang)


async def test_repeated_steps_start_no_second_process(cluster: Cluster) -> None:
    gang = plan([FOREVER] * 2)
    for step in cluster.steps():
        for _ in range(3):
            await cluster.do(step, gang)
    first = await await_all(cluster, gang, "running")
    await start(cluster, gang)
    assert await learners(cluster, gang) == first
    place = f"{gang.job}/1/worker-0/job"
    assert len(await until(lambda: living_with(place, program="sleep"))) == 1
    await teardown(cluster, gang)


async def test_concurrent_steps_start_each_learner_once(cluster: Cluster) -> None:
    gang = plan([FOREVER] * 3)
    await cluster.do("reserve", gang)
    await asyncio.gather(*(cluster.do(step, gang) for step in ("learners", "activate", "learners", "activate")))
    assert len(await await_all(cluster, gang, "running")) == 3
    await teardown(cluster, gang)


async def test_exit_codes_and_signals_are_reported(cluster: Cluster) -> None:
    gang = plan(["exit 0", "exit 3", "kill -SEGV $$", "no-such-program"])
    await start(cluster, gang)
    processes = await await_all(cluster, gang, "exited")
    ends = [
        (process.exit.code, process.exit.signal, process.exit.stop_cause)
        for process in processes.values()
        if process.exit
    ]
    assert ends == [(0, None, ""), (3, None, ""), (None, 11, ""), (127, None, "")]
    await teardown(cluster, gang)


async def test_a_halted_learner_can_save_within_its_grace(cluster: Cluster, node: NodeProcess) -> None:
    saves = (
        'trap "test -e $JOB_STATE_DIR/stop-requested && echo saved; exit 9" TERM; echo up; while :; do sleep 0.01; done'
    )
    gang = plan([saves])
    await start(cluster, gang)
    await until(lambda: node.output(gang) == "up\n")
    await stop(cluster, gang, "halt", 20_000)
    end = await await_exit(cluster, gang)
    assert (end.code, end.stop_cause, node.output(gang)) == (9, "halt", "up\nsaved\n")
    await teardown(cluster, gang)


async def test_a_program_has_its_grace_even_if_the_shell_above_it_dies_of_sigterm(
    cluster: Cluster, node: NodeProcess
) -> None:
    # The shell dies of SIGTERM at once; the program begins to save then. If it began at stop-requested, which is made
    # before the signal is sent, it might end first, and the shell would go on.
    program = (
        "trap '' TERM; echo up; while kill -0 $PPID; do sleep 0.01; done; sleep 0.2; "
        "test -e $JOB_STATE_DIR/stop-requested && echo saved"
    )
    gang = plan([f"sh -c '{program.replace(chr(39), chr(34))}'; echo not reached"])
    await start(cluster, gang)
    await until(lambda: node.output(gang) == "up\n")
    await stop(cluster, gang, "halt", 20_000)
    end = await await_exit(cluster, gang)
    assert (end.signal, end.stop_cause, node.output(gang)) == (15, "halt", "up\nsaved\n")
    await teardown(cluster, gang)


async def test_a_learner_that_ignores_sigterm_is_killed_after_its_grace(cluster: Cluster, node: NodeProcess) -> None:
    gang = plan(["trap '' TERM; echo up; while :; do sleep 0.01; done"])
    await start(cluster, gang)
    await until(lambda: node.output(gang) == "up\n")
    await stop(cluster, gang, "deadline", 100)
    end = await await_exit(cluster, gang)
    assert (end.signal, end.stop_cause) == (9, "deadline")
    await teardown(cluster, gang)


async def test_a_kill_overrides_a_halt_in_its_grace(cluster: Cluster, node: NodeProcess) -> None:
    gang = plan(["trap '' TERM; echo up; while :; do sleep 0.01; done"] * 2)
    await start(cluster, gang)
    await until(lambda: node.output(gang, 0) == node.output(gang, 1) == "up\n")
    await stop(cluster, gang, "halt", 60_000)
    await stop(cluster, gang, "kill", 0)
    await stop(cluster, gang, "halt", 60_000)  # weaker: changes nothing
    processes = await await_all(cluster, gang, "exited")
    assert [(process.exit.signal, process.exit.stop_cause) for process in processes.values() if process.exit] == [
        (9, "kill")
    ] * 2
    await teardown(cluster, gang)


async def test_a_kill_and_teardown_take_less_than_a_second(cluster: Cluster, node: NodeProcess) -> None:
    for stopwatch in tries_within(1.0):
        gang = plan(["trap '' TERM; sleep 1000 & sleep 1000 & echo up; wait"] * 4)
        await start(cluster, gang)
        await until(lambda: [node.output(gang, rank) for rank in range(4)] == ["up\n"] * 4)  # noqa: B023 - in this round
        with stopwatch:
            await stop(cluster, gang, "kill", 0)
            await teardown(cluster, gang)
        assert living_with(gang.job) == []


async def test_a_learner_that_ended_before_the_stop_has_no_stop_cause(cluster: Cluster) -> None:
    gang = plan(["exit 0", FOREVER])
    await start(cluster, gang)

    await await_state(cluster, gang, "exited")
    await stop(cluster, gang, "halt", 1000)
    processes = await await_all(cluster, gang, "exited")
    assert [process.exit.stop_cause for process in processes.values() if process.exit] == ["", "halt"]
    await teardown(cluster, gang)


@pytest.mark.parametrize("last", ["reserve", "learners"])
async def test_a_learner_that_is_stopped_before_it_ran_never_runs(
    cluster: Cluster, node: NodeProcess, last: str
) -> None:
    gang = plan(["echo ran"] * 2)
    for step in cluster.steps()[: cluster.steps().index(last) + 1]:
        await cluster.do(step, gang)
    await stop(cluster, gang, "halt", 1000)
    processes = await await_all(cluster, gang, "exited")
    assert [(process.run, process.exit.stop_cause) for process in processes.values() if process.exit] == [
        (0, "halt")
    ] * 2
    await start(cluster, gang)  # a late repetition
    processes = await await_all(cluster, gang, "exited")
    assert node.output(gang) == ""
    await teardown(cluster, gang)


async def test_daemons_of_a_learner_are_killed_at_its_end(cluster: Cluster) -> None:
    daemons = "setsid sleep 1001 & (sleep 1002 &) & (setsid sh -c 'sleep 1003 & sleep 1004' &) ; sleep 0.1"
    gang = plan([daemons, f"{daemons}; {FOREVER}"])
    await start(cluster, gang)
    await await_state(cluster, gang, "exited")
    assert living_with(f"{gang.job}/1/worker-0/job") == []
    await stop(cluster, gang, "kill", 0)
    await await_all(cluster, gang, "exited")
    assert living_with(f"{gang.job}/1/worker-1/job") == []
    await teardown(cluster, gang)


async def test_teardown_of_a_running_gang_removes_processes_and_closed_folders(
    cluster: Cluster, node: NodeProcess
) -> None:
    makes = "mkdir -m 0 locked; cd $RESULT_DIR; mkdir x; touch x/y; chmod 0 x; echo up; exec sleep 1000"
    gang = plan([makes] * 2)
    await start(cluster, gang)
    await until(lambda: node.output(gang, 0) == node.output(gang, 1) == "up\n")
    await teardown(cluster, gang)
    assert await cluster.observe(gang.job) == type(await cluster.observe(gang.job))(learners=[], attempts=[])
    assert living_with(gang.job) == []
    assert not (node.home / "node" / gang.job).exists()
    await teardown(cluster, gang)


async def test_teardown_removes_earlier_attempts(cluster: Cluster) -> None:
    old = plan([FOREVER])
    await start(cluster, old)
    new = replace(old, attempt=2, term=2)
    await start(cluster, new)
    assert (await cluster.observe(old.job)).attempts == [1, 2]
    await teardown(cluster, new)
    assert (await cluster.observe(old.job)).attempts == []
    assert living_with(old.job) == []


async def test_a_gang_that_does_not_fit_reserves_nothing(cluster: Cluster, node: NodeProcess) -> None:
    first = plan([FOREVER] * 3, gpus=1)
    await cluster.do("reserve", first)
    second = plan([FOREVER] * 2, gpus=1)
    with pytest.raises(ResourceExhausted, match="1 of 4 are free"):
        await cluster.do("reserve", second)
    assert (await cluster.observe(second.job)).attempts == []
    await teardown(cluster, first)
    await cluster.do("reserve", second)
    assert [node.read(second, "learner.json", rank)["gpus"] for rank in (0, 1)] == [[0], [1]]
    await teardown(cluster, second)


async def test_a_learner_sees_only_its_gpus(cluster: Cluster, node: NodeProcess) -> None:
    gang = plan(['echo "$CUDA_VISIBLE_DEVICES $GPU_COUNT"'] * 2, gpus=2)
    await start(cluster, gang)
    await await_all(cluster, gang, "exited")
    assert [node.output(gang, rank) for rank in (0, 1)] == ["0,1 2\n", "2,3 2\n"]
    await teardown(cluster, gang)


async def test_a_plan_without_rendered_variables_is_carried_out_by_schema_1(
    cluster: Cluster, node: NodeProcess
) -> None:
    rendered = plan(
        ['echo "$WEFT_RANK $MASTER_ADDR $RANK of $WORLD_SIZE at $MASTER_PORT in $PWD"'] * 2, distribution="torchrun"
    )
    learner_plans = tuple(replace(learner, variables={}) for learner in rendered.learners)
    gang = replace(rendered, learners=learner_plans, variables={}, schema=1)
    await start(cluster, gang)
    await await_all(cluster, gang, "exited")
    (port,) = node.read(gang, "learner.json")["ports"].values()
    assert [node.output(gang, rank) for rank in (0, 1)] == [
        f"{rank} 127.0.0.1 {rank} of 2 at {port} in {node.folder(gang, rank)}/job/model-code\n" for rank in (0, 1)
    ]
    await teardown(cluster, gang)


async def test_a_plan_of_a_newer_schema_is_refused_until_the_agent_is_upgraded(cluster: Cluster) -> None:
    gang = replace(plan([FOREVER]), schema=SCHEMA + 1)
    with pytest.raises(Unavailable, match="finish the upgrade"):
        await cluster.do("reserve", gang)
    assert (await cluster.observe(gang.job)).attempts == []


async def test_learners_that_refer_to_each_others_ports_get_different_ones(cluster: Cluster, node: NodeProcess) -> None:
    gang = plan(['echo "$MINE $THEIRS"'] * 2)
    ports = [
        {"MINE": (Part(PartKind.PORT, f"worker-{rank}"),), "THEIRS": (Part(PartKind.PORT, f"worker-{1 - rank}"),)}
        for rank in (0, 1)
    ]
    gang = replace(
        gang,
        learners=tuple(
            replace(learner, variables={**learner.variables, **variables})
            for learner, variables in zip(gang.learners, ports, strict=True)
        ),
    )
    await start(cluster, gang)
    await await_all(cluster, gang, "exited")
    first, second = (node.output(gang, rank).split() for rank in (0, 1))
    assert first == second[::-1]
    assert len({*first}) == 2
    await teardown(cluster, gang)


async def test_invalid_calls_are_refused_with_the_reason(cluster: Cluster) -> None:
    with pytest.raises(InvalidRequest, match="no step 'dance'"):
        await cluster.do("dance", plan([FOREVER]))
    with pytest.raises(InvalidRequest, match="not been reserved"):
        await cluster.do("learners", plan([FOREVER]))
    with pytest.raises(InvalidRequest, match="cannot be the name"):
        await cluster.do("reserve", plan([FOREVER], job="../x"))


async def test_watchers_get_the_job_of_a_learner_that_ended(cluster: Cluster) -> None:
    gang = plan(["true"])
    async with aclosing(cluster.watch()) as changes:  # type: ignore[type-var]
        assert await anext(changes) == ""
        await start(cluster, gang)
        async with asyncio.timeout(HANG_S):
            while await anext(changes) != gang.job:
                pass
    await teardown(cluster, gang)


async def test_a_learner_has_its_environment_and_nothing_of_the_agents(cluster: Cluster, node: NodeProcess) -> None:
    command = "env; pwd; umask; ulimit -c; python3 -c 'import weft; weft.report(step=1, loss=0.5)'; cat; echo end"
    gang = plan([command], env={"MINE": "a b", "PYTHONPATH": "/x"})
    await start(cluster, gang)
    await await_all(cluster, gang, "exited")
    lines = node.output(gang).splitlines()
    job = node.folder(gang) / "job"
    assert {f"HOME={job}/home", f"MODEL_DIR={job}/model-code", "MINE=a b", f"PYTHONPATH={node.home / 'sdk'}:/x"} <= {
        *lines
    }
    assert lines[-4:] == [f"{job}/model-code", "0022", "0", "end"]
    assert not [line for line in lines if line.startswith(("WEFT_HOME", "WEFT_NODE"))]
    assert '"loss":0.5' in (job / "metrics.jsonl").read_text()
    assert node.output(gang, stream="stderr") == ""
    await teardown(cluster, gang)


async def test_learners_cannot_read_files_of_other_learners_or_of_the_platform(
    cluster: Cluster, node: NodeProcess
) -> None:
    victim = plan(["echo private > $RESULT_DIR/x; exec sleep 1000"])
    await start(cluster, victim)
    await until((node.folder(victim) / "job/results/x").exists)
    theirs = node.folder(victim)
    spy = plan([f"id -u; cd {theirs}; cat job/results/x learner.json runs/1/stdout $JOB_STATE_DIR/../learner.json"])
    await start(cluster, spy)
    await await_all(cluster, spy, "exited")
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
    await teardown(cluster, spy)
    await teardown(cluster, victim)
