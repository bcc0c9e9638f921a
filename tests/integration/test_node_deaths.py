"""Any process of one machine may be killed at any time: training goes on, or its end is known; nothing runs twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from services.core.adapters.local.cluster import LocalCluster
from services.core.domain.errors import NoSpace, ResourceExhausted, StaleFence
from services.core.domain.plan import AttemptPlan
from services.core.ports.cluster import LearnerProcess
from services.node import shim
from tests.testbed.node import NodeProcess, living_with, node_process, plan
from tests.testbed.server import free_port
from tests.testbed.signals import kill_all
from tests.waiting import HANG_S, until

FOREVER = "exec sleep 1000"
UNTIL_FILE = "echo up; until [ -e $JOB_STATE_DIR/end ]; do sleep 0.01; done; exit 7"


@pytest.fixture(scope="module")
def machine() -> Generator[NodeProcess]:
    with node_process() as one:
        yield one


@pytest.fixture
def node(machine: NodeProcess) -> NodeProcess:
    """Running, whatever the test before has done to it."""
    if machine.process is None:
        machine.start()
    return machine


@pytest.fixture
async def cluster(node: NodeProcess) -> AsyncGenerator[LocalCluster]:
    one = await node.cluster()
    yield one
    await one.close()


async def learner(cluster: LocalCluster, of: AttemptPlan, rank: int = 0) -> LearnerProcess:
    return (await cluster.observe(of.job)).learners[rank]


async def start(cluster: LocalCluster, of: AttemptPlan, *, until_state: str = "running") -> list[LearnerProcess]:
    for step in cluster.steps():
        await cluster.do(step, of)
    return [await reaches(cluster, of, until_state, rank) for rank in range(len(of.learners))]


async def reaches(cluster: LocalCluster, of: AttemptPlan, state: str, rank: int = 0) -> LearnerProcess:
    async def there() -> LearnerProcess | None:
        seen = await learner(cluster, of, rank)
        return seen if seen.state == state else None

    found = await until(there)
    assert found is not None
    return found


async def stop(cluster: LocalCluster, of: AttemptPlan, cause: str, grace_ms: int) -> None:
    await cluster.stop(of.job, attempt=of.attempt, term=of.term, generation=2, cause=cause, grace_ms=grace_ms)


async def run(*argv: str) -> int:
    """The exit code."""
    return await (await asyncio.create_subprocess_exec(*argv)).wait()


async def test_training_does_not_notice_that_the_agent_was_killed(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan([UNTIL_FILE, FOREVER])
    before = await start(cluster, gang)
    shims = [node.read(gang, "shim.json", rank) for rank in (0, 1)]
    node.end(signal.SIGKILL)
    node.start()
    assert [await learner(cluster, gang, rank) for rank in (0, 1)] == before
    assert [node.read(gang, "shim.json", rank) for rank in (0, 1)] == shims
    (node.folder(gang) / "job/end").touch()
    end = (await reaches(cluster, gang, "exited")).exit
    assert end is not None
    assert (end.code, end.natural) == (7, True)
    await cluster.teardown(gang.job, attempt=1, term=1)
    assert living_with(gang.job) == []


async def test_an_exit_while_no_agent_lives_is_not_lost(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan([UNTIL_FILE])
    await start(cluster, gang)
    node.end(signal.SIGKILL)
    (node.folder(gang) / "job/end").touch()
    await until((node.folder(gang) / "runs/1/exit.json").exists)
    node.start()
    end = (await learner(cluster, gang)).exit
    assert end is not None
    assert (end.code, end.lost) == (7, False)


async def test_an_agent_that_is_asked_to_end_leaves_learners_alone(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan([FOREVER])
    (before,) = await start(cluster, gang)
    async with aclosing(cluster.watch()) as changes:  # type: ignore[type-var]  # an iterator for the port, a generator here
        assert await anext(changes) == ""
        assert node.end(signal.SIGTERM) == 0
        assert before.pid is not None
        os.kill(before.pid, 0)
        node.start()
        assert await anext(changes) == ""  # connected again: look at everything
    assert await learner(cluster, gang) == before


async def test_a_gang_in_the_middle_of_its_steps_goes_on_with_the_next_agent(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    gang = plan([FOREVER] * 2)
    for step in cluster.steps():
        await cluster.do(step, gang)
        node.end(signal.SIGKILL)
        node.start()
    await reaches(cluster, gang, "running", 1)
    place = f"{gang.job}/1/worker-0/job"
    assert len(await until(lambda: living_with(place, program="sleep"))) == 1


async def test_a_stop_that_the_agent_could_not_tell_the_shim_is_still_carried_out(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    gang = plan([FOREVER])
    await start(cluster, gang)
    node.end(signal.SIGKILL)
    mark = {"schema": 1, "generation": 2, "cause": "halt", "grace_ms": 5000, "time": 0}
    new = node.folder(gang) / ".stop"
    new.write_text(json.dumps(mark))
    new.rename(node.folder(gang) / "stop.json")  # all that an agent killed at this point has done
    node.start()
    end = (await reaches(cluster, gang, "exited")).exit
    assert end is not None
    assert (end.signal, end.stop_cause) == (15, "halt")


@pytest.mark.parametrize("agent", ["alive", "dead"])
async def test_a_learner_whose_shim_was_killed_is_ended_and_lost(
    node: NodeProcess, cluster: LocalCluster, agent: str
) -> None:
    # Without users of their own, who leaves the session and clears its environment is known to the shim alone.
    hides = "env -i" if os.geteuid() == 0 else ""
    gang = plan([f"setsid sleep 1001 & ({hides} setsid sleep 1002 &) ; {FOREVER}", FOREVER])
    (first, second) = await start(cluster, gang)
    if agent == "dead":
        node.end(signal.SIGKILL)
    os.kill(node.read(gang, "shim.json")["pid"], signal.SIGKILL)
    if agent == "dead":
        node.start()
    end = (await reaches(cluster, gang, "exited")).exit
    assert end is not None
    assert (end.lost, end.code, end.signal) == (True, None, None)
    assert first.pid not in living_with(f"{gang.job}/1/worker-0/job")
    assert await learner(cluster, gang, 1) == second
    await cluster.do("learners", gang)
    assert (await learner(cluster, gang)).exit == end
    await cluster.teardown(gang.job, attempt=1, term=1)
    assert living_with(gang.job) == []


async def test_a_shim_that_dies_before_its_learner_ran_is_replaced(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan([UNTIL_FILE])
    await cluster.do("reserve", gang)
    await cluster.do("learners", gang)
    dead = node.read(gang, "shim.json")["pid"]
    os.kill(dead, signal.SIGKILL)
    await until(lambda: node.read(gang, "shim.json")["pid"] != dead)
    await cluster.do("activate", gang)
    await reaches(cluster, gang, "running")
    (node.folder(gang) / "job/end").touch()
    end = (await reaches(cluster, gang, "exited")).exit
    assert end is not None
    assert end.code == 7


async def test_there_are_never_two_shims(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan([FOREVER])
    (before,) = await start(cluster, gang)
    another = [sys.executable, "-I", "-S", shim.__file__, str(node.folder(gang))]
    assert await run(*another) == shim.HELD
    assert await learner(cluster, gang) == before
    os.kill(node.read(gang, "shim.json")["pid"], signal.SIGKILL)
    await reaches(cluster, gang, "exited")
    assert await run(*another) == 0
    assert living_with(f"{gang.job}/1/worker-0/job") == []


async def test_a_helper_that_dies_is_started_again_until_all_is_stored(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    gang = plan([UNTIL_FILE])
    (before,) = await start(cluster, gang)
    for _ in range(3):
        dead = node.read(gang, "helper.json")["pid"]
        os.kill(dead, signal.SIGKILL)
        await until(lambda dead=dead: node.read(gang, "helper.json")["pid"] != dead)  # type: ignore[misc]
    assert await learner(cluster, gang) == before
    (node.folder(gang) / "job/end").touch()
    await until((node.folder(gang) / "stored").exists)


async def test_after_a_reboot_what_had_started_is_lost_and_what_had_not_goes_on(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    ran, waits = plan([FOREVER]), plan(["exit 7"])
    await start(cluster, ran)
    await cluster.do("reserve", waits)
    await cluster.do("learners", waits)
    node.end(signal.SIGKILL)
    for of in (ran, waits):
        kill_all(partial(living_with, str(node.folder(of))))
        for path in node.folder(of).rglob("*.json"):
            path.write_text(path.read_text().replace(Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "b"))
    node.start()
    end = (await reaches(cluster, ran, "exited")).exit
    assert end is not None
    assert end.lost
    await cluster.do("activate", waits)
    end = (await reaches(cluster, waits, "exited")).exit
    assert end is not None
    assert (end.code, end.lost) == (7, False)


async def test_fences_outlive_the_agent_and_the_job(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan([FOREVER], attempt=2, term=5)
    await start(cluster, gang)
    await cluster.teardown(gang.job, attempt=2, term=5)
    node.end(signal.SIGKILL)
    node.start()
    for old in (gang, replace(gang, term=4), replace(gang, attempt=1)):
        with pytest.raises(StaleFence):
            await cluster.do("reserve", old)
    assert (await cluster.observe(gang.job)).attempts == []


async def test_what_was_half_made_or_half_removed_is_gone_after_a_restart(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    gang = plan([FOREVER])
    await cluster.do("reserve", gang)
    node.end(signal.SIGKILL)
    job = node.home / "node" / gang.job
    for name in (".new-2", ".gone-1"):
        (job / name / "worker-0").mkdir(parents=True)
    node.start()
    assert (await cluster.observe(gang.job)).attempts == [1]
    assert [entry.name for entry in job.iterdir()] == ["1"]


async def test_one_unreadable_learner_harms_itself_only(node: NodeProcess, cluster: LocalCluster) -> None:
    good, bad = plan([FOREVER]), plan([FOREVER])
    (before,) = await start(cluster, good)
    await cluster.do("reserve", bad)
    node.end(signal.SIGKILL)
    (node.folder(bad) / "learner.json").write_text('{"schema": 1, "plan": 3}')
    node.start()
    assert await learner(cluster, good) == before
    assert (await cluster.observe(bad.job)).attempts == [1]
    await cluster.teardown(bad.job, attempt=1, term=1)
    assert (await cluster.observe(bad.job)).attempts == []


async def test_resources_of_adopted_learners_stay_taken(node: NodeProcess, cluster: LocalCluster) -> None:
    first = plan([FOREVER] * 3, gpus=1, distribution="jax")
    await cluster.do("reserve", first)
    node.end(signal.SIGKILL)
    node.start()
    second = plan([FOREVER], gpus=1, distribution="jax")
    await cluster.do("reserve", second)
    mine, other = node.read(second, "learner.json"), node.read(first, "learner.json")
    assert mine["gpus"] == [3]
    assert mine["ports"]["master"] != other["ports"]["master"]
    if os.geteuid() == 0:
        assert mine["uid"] != other["uid"]
    for one in (first, second):
        await cluster.teardown(one.job, attempt=1, term=1)


async def test_what_a_learner_holds_that_cannot_be_read_is_given_to_nobody(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    first = plan([FOREVER] * 3, gpus=1)
    await start(cluster, first)
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
    await cluster.teardown(first.job, attempt=1, term=1)
    await cluster.do("reserve", third)
    for one in (second, third):
        await cluster.teardown(one.job, attempt=1, term=1)


async def test_a_second_agent_of_the_same_home_does_not_start(node: NodeProcess) -> None:
    first, addresses = node.process, node.home.addresses_file.read_text()
    others = {name: f"127.0.0.1:{free_port()}" for name in node.addresses}
    node.home.addresses_file.write_text(json.dumps(others))
    node.start(ready=False)
    assert node.process is not None
    assert await asyncio.to_thread(node.process.wait, HANG_S) == 1
    assert "another node agent is running" in node.log.splitlines()[-1]
    node.process = first
    node.home.addresses_file.write_text(addresses)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can be mounted by root only")
@pytest.mark.parametrize("limit", ["size=64k", "nr_inodes=60"])
async def test_a_full_disk_leaves_nothing_half_made(node: NodeProcess, cluster: LocalCluster, limit: str) -> None:
    node.end()
    root = node.home / "node"
    await run("mount", "-t", "tmpfs", "-o", limit, "tmpfs", str(root))
    try:
        node.start()
        big, small = plan([FOREVER] * 30), plan([FOREVER])
        with pytest.raises(NoSpace):
            await cluster.do("reserve", big)
        assert [entry.name for entry in root.iterdir()] == [".agent"]
        await start(cluster, small)
        await cluster.teardown(small.job, attempt=1, term=1)
    finally:
        node.end()
        await run("umount", str(root))


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can be mounted by root only")
@pytest.mark.parametrize("ends", ["by itself", "killed"])
async def test_a_learner_that_fills_the_disk_ends_as_any_other(
    node: NodeProcess, cluster: LocalCluster, ends: str
) -> None:
    node.end()
    root = node.home / "node"
    await run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(root))
    try:
        node.start()
        fills = "cat /dev/zero > $RESULT_DIR/x; cat /dev/zero > $RESULT_DIR/y; echo full >&2; "
        gang = plan([fills + ("exit 5" if ends == "by itself" else FOREVER)])
        await start(cluster, gang, until_state="exited" if ends == "by itself" else "running")
        if ends == "killed":
            await until(lambda: os.statvfs(root).f_bavail == 0)
            await stop(cluster, gang, "kill", 0)
            await reaches(cluster, gang, "exited")
        end = (await learner(cluster, gang)).exit
        assert end is not None
        assert (end.code, end.stop_cause) == ((5, "") if ends == "by itself" else (None, "kill"))
        await cluster.teardown(gang.job, attempt=1, term=1)
        assert (await cluster.observe(gang.job)).attempts == []
    finally:
        node.end()
        await run("umount", str(root))
