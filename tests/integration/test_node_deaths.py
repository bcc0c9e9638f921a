"""Any process of the machine is killed at any time: training continues or its end is known, and nothing runs twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Generator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from services.core.adapters.local.cluster import LocalCluster
from services.core.domain.errors import NoSpace, ResourceExhausted, StaleFence
from services.core.domain.plan import AttemptPlan
from services.core.ports.cluster import LearnerProcess
from services.core.runtime.processes import alive, identify
from services.node import shim, shutdown
from tests.testbed.gangs import await_all, await_exit, await_state, learner, learners, observe, start, stop, teardown
from tests.testbed.node import NodeProcess, living_with, node_process, plan
from tests.testbed.server import free_address
from tests.testbed.signals import kill_all
from tests.waiting import HANG_S, until

FOREVER = "exec sleep 1000"
UNTIL_FILE = "echo up; until [ -e $JOB_STATE_DIR/end ]; do sleep 0.01; done; exit 7"


@pytest.fixture(scope="module")
def machine() -> Generator[NodeProcess]:
    with node_process() as running:
        yield running


@pytest.fixture
def node(machine: NodeProcess) -> NodeProcess:
    """Running, even if the test before has ended it."""
    if machine.process is None:
        machine.start()
    return machine


async def start_one(cluster: LocalCluster, gang: AttemptPlan) -> LearnerProcess:
    """The running process of a gang of one."""
    await start(cluster, gang)
    return await await_state(cluster, gang, "running")


async def start_all(cluster: LocalCluster, gang: AttemptPlan) -> None:
    """Returns when all processes run."""
    await start(cluster, gang)
    await await_all(cluster, gang, "running")


async def run(*argv: str) -> int:
    """The exit code of a program."""
    return await (await asyncio.create_subprocess_exec(*argv)).wait()


async def test_training_continues_when_the_agent_is_killed(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan([UNTIL_FILE, FOREVER])
    await start(cluster, gang)
    before = await await_all(cluster, gang, "running")
    shims = [node.read(gang, "shim.json", rank) for rank in (0, 1)]
    node.end(signal.SIGKILL)
    node.start()
    assert await learners(cluster, gang) == before
    assert [node.read(gang, "shim.json", rank) for rank in (0, 1)] == shims
    (node.folder(gang) / "job/end").touch()
    end = await await_exit(cluster, gang)
    assert (end.code, end.natural) == (7, True)
    await teardown(cluster, gang)
    assert living_with(gang.job) == []


async def test_exit_code_survives_while_no_agent_runs(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan([UNTIL_FILE])
    await start_all(cluster, gang)
    node.end(signal.SIGKILL)
    (node.folder(gang) / "job/end").touch()
    await until((node.folder(gang) / "runs/1/exit.json").exists)
    node.start()
    end = (await learner(cluster, gang)).exit
    assert end is not None
    assert (end.code, end.lost) == (7, False)


async def test_learners_that_weft_down_ends_are_lost_and_have_not_failed(
    node: NodeProcess, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shim recorded the kill as its learner's own: after `weft down --now` and `weft up` the job was FAILED."""
    gang = plan([FOREVER] * 4)
    await start_all(cluster, gang)
    node.end(signal.SIGTERM)
    shims = [identify(node.read(gang, "shim.json", rank)["pid"]) for rank in range(4)]
    identities = {shim.pid: shim for shim in shims if shim is not None}
    assert len(identities) == 4
    too_early: list[int] = []
    kill = os.kill

    def record(pid: int, sign: int) -> None:
        if pid not in identities and any(map(alive, identities.values())):
            too_early.append(pid)
        kill(pid, sign)

    monkeypatch.setattr(os, "kill", record)
    assert await asyncio.to_thread(shutdown.end_all, node.home / "node") == set()
    assert too_early == []
    node.start()
    for process in (await await_all(cluster, gang, "exited")).values():
        assert process.exit is not None
        assert (process.exit.lost, process.exit.signal) == (True, None)
    await teardown(cluster, gang)


async def test_learners_live_on_when_the_agent_is_stopped(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan([FOREVER])
    before = await start_one(cluster, gang)
    async with aclosing(cluster.watch()) as changes:  # type: ignore[type-var]  # the port says iterator, it is a generator
        assert await anext(changes) == ""
        assert node.end(signal.SIGTERM) == 0
        assert before.pid is not None
        os.kill(before.pid, 0)
        node.start()
        async with asyncio.timeout(HANG_S):  # a job of an earlier test may change before the agent has ended
            while await anext(changes) != "":
                pass  # connected again: observe all jobs
    assert await learner(cluster, gang) == before


async def test_a_gang_killed_between_its_steps_is_provisioned_by_the_next_agent(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    gang = plan([FOREVER] * 2)
    for step in cluster.steps():
        await cluster.do(step, gang)
        node.end(signal.SIGKILL)
        node.start()
    await await_state(cluster, gang, "running", 1)
    place = f"{gang.job}/1/worker-0/job"
    assert len(await until(lambda: living_with(place, program="sleep"))) == 1


async def test_a_stop_is_carried_out_if_the_agent_dies_before_it_signals_the_shim(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    gang = plan([FOREVER])
    await start_all(cluster, gang)
    node.end(signal.SIGKILL)
    mark = {"schema": 1, "generation": 2, "cause": "halt", "grace_ms": 5000, "time": 0}
    temporary = node.folder(gang) / ".stop"
    temporary.write_text(json.dumps(mark))
    temporary.rename(node.folder(gang) / "stop.json")  # the state that an agent killed at this point leaves
    node.start()
    end = await await_exit(cluster, gang)
    assert (end.signal, end.stop_cause) == (15, "halt")


@pytest.mark.parametrize("agent", ["alive", "dead"])
async def test_a_learner_whose_shim_was_killed_is_killed_and_reported_as_lost(
    node: NodeProcess, cluster: LocalCluster, agent: str
) -> None:
    # Without a user per job, only the shim can find a process that leaves the session and clears its environment.
    hides = "env -i" if os.geteuid() == 0 else ""
    gang = plan([f"setsid sleep 1001 & ({hides} setsid sleep 1002 &) ; {FOREVER}", FOREVER])
    await start(cluster, gang)
    first, second = (await await_all(cluster, gang, "running")).values()
    if agent == "dead":
        node.end(signal.SIGKILL)
    os.kill(node.read(gang, "shim.json")["pid"], signal.SIGKILL)
    if agent == "dead":
        node.start()
    end = await await_exit(cluster, gang)
    assert (end.lost, end.code, end.signal) == (True, None, None)
    assert first.pid not in living_with(f"{gang.job}/1/worker-0/job")
    assert await learner(cluster, gang, 1) == second
    await cluster.do("learners", gang)
    assert (await learner(cluster, gang)).exit == end
    await teardown(cluster, gang)
    assert living_with(gang.job) == []


async def test_a_shim_that_dies_before_its_learner_ran_is_restarted(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan([UNTIL_FILE])
    await cluster.do("reserve", gang)
    await cluster.do("learners", gang)
    dead = node.read(gang, "shim.json")["pid"]
    os.kill(dead, signal.SIGKILL)
    await until(lambda: node.read(gang, "shim.json")["pid"] != dead)
    await cluster.do("activate", gang)
    await await_state(cluster, gang, "running")
    (node.folder(gang) / "job/end").touch()
    end = await await_exit(cluster, gang)
    assert end.code == 7


async def test_a_second_shim_does_not_start(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan([FOREVER])
    before = await start_one(cluster, gang)
    another = [sys.executable, "-I", "-S", shim.__file__, str(node.folder(gang))]
    assert await run(*another) == shim.HELD
    assert await learner(cluster, gang) == before
    os.kill(node.read(gang, "shim.json")["pid"], signal.SIGKILL)
    await await_state(cluster, gang, "exited")
    assert await run(*another) == 0
    assert living_with(f"{gang.job}/1/worker-0/job") == []


async def test_a_helper_is_restarted_until_everything_is_stored(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan([UNTIL_FILE])
    before = await start_one(cluster, gang)
    for _ in range(3):
        dead = node.read(gang, "helper.json")["pid"]
        os.kill(dead, signal.SIGKILL)
        await until(lambda dead=dead: node.read(gang, "helper.json")["pid"] != dead)  # type: ignore[misc]
    assert await learner(cluster, gang) == before
    (node.folder(gang) / "job/end").touch()
    await until((node.folder(gang) / "stored").exists)


async def test_after_a_reboot_started_learners_are_lost_and_others_still_start(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    ran, waits = plan([FOREVER]), plan(["exit 7"])
    await start_all(cluster, ran)
    await cluster.do("reserve", waits)
    await cluster.do("learners", waits)
    node.end(signal.SIGKILL)
    for gang in (ran, waits):
        kill_all(partial(living_with, str(node.folder(gang))))
        for path in node.folder(gang).rglob("*.json"):
            path.write_text(path.read_text().replace(Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "b"))
    node.start()
    end = await await_exit(cluster, ran)
    assert end.lost
    await cluster.do("activate", waits)
    end = await await_exit(cluster, waits)
    assert (end.code, end.lost) == (7, False)


async def test_fences_survive_the_agent_and_the_job(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan([FOREVER], attempt=2, term=5)
    await start_all(cluster, gang)
    await teardown(cluster, gang)
    node.end(signal.SIGKILL)
    node.start()
    for old in (gang, replace(gang, term=4), replace(gang, attempt=1)):
        with pytest.raises(StaleFence):
            await cluster.do("reserve", old)
    assert (await observe(cluster, gang)).attempts == []


async def test_half_made_and_half_removed_folders_are_removed_after_a_restart(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    gang = plan([FOREVER])
    await cluster.do("reserve", gang)
    node.end(signal.SIGKILL)
    job = node.home / "node" / gang.job
    for name in (".new-2", ".gone-1"):
        (job / name / "worker-0").mkdir(parents=True)
    node.start()
    assert (await observe(cluster, gang)).attempts == [1]
    assert [entry.name for entry in job.iterdir()] == ["1"]


async def test_a_damaged_learner_json_affects_only_its_own_job(node: NodeProcess, cluster: LocalCluster) -> None:
    good, bad = plan([FOREVER]), plan([FOREVER])
    before = await start_one(cluster, good)
    await cluster.do("reserve", bad)
    node.end(signal.SIGKILL)
    (node.folder(bad) / "learner.json").write_text('{"schema": 1, "plan": 3}')
    node.start()
    assert await learner(cluster, good) == before
    assert (await observe(cluster, bad)).attempts == [1]
    await teardown(cluster, bad)
    assert (await observe(cluster, bad)).attempts == []


async def test_resources_of_adopted_learners_stay_taken(node: NodeProcess, cluster: LocalCluster) -> None:
    first = plan([FOREVER] * 3, gpus=1, distribution="jax")
    await cluster.do("reserve", first)
    node.end(signal.SIGKILL)
    node.start()
    second = plan([FOREVER], gpus=1, distribution="jax")
    await cluster.do("reserve", second)
    document, adopted = node.read(second, "learner.json"), node.read(first, "learner.json")
    assert document["gpus"] == [3]
    assert document["ports"]["worker-0"] != adopted["ports"]["worker-0"]
    if os.geteuid() == 0:
        assert document["uid"] != adopted["uid"]
    for gang in (first, second):
        await teardown(cluster, gang)


async def test_gpus_and_users_of_damaged_learners_are_not_given_to_others(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    first = plan([FOREVER] * 3, gpus=1)
    await start_all(cluster, first)
    held = node.read(first, "learner.json")
    node.end(signal.SIGKILL)
    for rank in range(3):
        (node.folder(first, rank) / "learner.json").write_text('{"schema": 1, "plan": 3}')
    node.start()
    second, third = plan([FOREVER], gpus=1), plan([FOREVER], gpus=1)
    await cluster.do("reserve", second)
    assert node.read(second, "learner.json")["gpus"] == [3]
    if os.geteuid() == 0:
        assert node.read(second, "learner.json")["uid"] != held["uid"]
    with pytest.raises(ResourceExhausted):
        await cluster.do("reserve", third)
    await teardown(cluster, first)
    await cluster.do("reserve", third)
    for gang in (second, third):
        await teardown(cluster, gang)


async def test_a_second_agent_for_the_same_home_does_not_start(node: NodeProcess) -> None:
    first, addresses = node.process, node.home.addresses_file.read_text()
    others = {name: free_address() for name in node.addresses}
    node.home.addresses_file.write_text(json.dumps(others))
    node.start(ready=False)
    assert node.process is not None
    assert await asyncio.to_thread(node.process.wait, HANG_S) == 1
    assert "another node agent is running" in node.log  # the first agent may have logged a line since
    node.process = first
    node.home.addresses_file.write_text(addresses)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can be mounted by root only")
@pytest.mark.parametrize("limit", ["size=96k", "nr_inodes=60"])
async def test_a_reservation_on_a_full_disk_leaves_nothing_behind(
    node: NodeProcess, cluster: LocalCluster, limit: str
) -> None:
    node.end()
    root = node.home / "node"
    await run("mount", "-t", "tmpfs", "-o", limit, "tmpfs", str(root))
    try:
        node.start()
        big, small = plan([FOREVER] * 30), plan([FOREVER])
        with pytest.raises(NoSpace):
            await cluster.do("reserve", big)
        assert [entry.name for entry in root.iterdir()] == [".agent"]
        await start_all(cluster, small)
        await teardown(cluster, small)
    finally:
        node.end()
        await run("umount", str(root))


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can be mounted by root only")
@pytest.mark.parametrize("ends", ["by itself", "killed"])
async def test_a_learner_that_fills_the_disk_is_stopped_and_its_exit_code_known(
    node: NodeProcess, cluster: LocalCluster, ends: str
) -> None:
    node.end()
    root = node.home / "node"
    await run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(root))
    try:
        node.start()
        fills = "cat /dev/zero > $RESULT_DIR/x; cat /dev/zero > $RESULT_DIR/y; echo full >&2; "
        gang = plan([fills + ("exit 5" if ends == "by itself" else FOREVER)])
        await start(cluster, gang)
        await await_state(cluster, gang, "exited" if ends == "by itself" else "running")
        if ends == "killed":
            await until(lambda: os.statvfs(root).f_bavail == 0)
            await stop(cluster, gang, "kill", 0)
            await await_state(cluster, gang, "exited")
        end = (await learner(cluster, gang)).exit
        assert end is not None
        assert (end.code, end.stop_cause) == ((5, "") if ends == "by itself" else (None, "kill"))
        await teardown(cluster, gang)
        assert (await observe(cluster, gang)).attempts == []
    finally:
        node.end()
        await run("umount", str(root))
