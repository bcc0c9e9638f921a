"""What keeps learners of one machine apart: what they see of each other, and what one can take away from the rest.

Where this machine lets nobody make control groups, what they would enforce cannot be tried; then it is asked that the
platform says so.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.adapters.local.cluster import LocalCluster
from services.core.domain.learner import Exit
from services.core.domain.plan import AttemptPlan, Input
from services.node import cgroups
from tests.testbed.node import NodeProcess, living_with, node_process, plan
from tests.waiting import tries_within, until

FOREVER = "exec sleep 1000"
PIDS = 300
HOG = "python3 -c 'x = b\"x\" * (1 << 29)'"


@pytest.fixture(scope="module", params=["process", "sandbox"])
def either(request: pytest.FixtureRequest) -> Generator[NodeProcess]:
    with node_process({"WEFT_NODE_ISOLATION": request.param, "WEFT_NODE_PIDS": str(PIDS)}) as one:
        yield one


@pytest.fixture(scope="module")
def sandbox() -> Generator[NodeProcess]:
    with node_process({"WEFT_NODE_ISOLATION": "sandbox"}) as one:
        yield one


@pytest.fixture
async def in_either(either: NodeProcess) -> AsyncGenerator[LocalCluster]:
    one = await either.cluster()
    yield one
    await one.close()


@pytest.fixture
async def in_sandbox(sandbox: NodeProcess) -> AsyncGenerator[LocalCluster]:
    one = await sandbox.cluster()
    yield one
    await one.close()


async def start(cluster: LocalCluster, of: AttemptPlan) -> None:
    for step in cluster.steps():
        await cluster.do(step, of)


async def end(cluster: LocalCluster, of: AttemptPlan, rank: int = 0) -> Exit:
    """How the learner ended, once it has."""

    async def ended() -> Exit | None:
        return (await cluster.observe(of.job)).learners[rank].exit

    found = await until(ended)
    assert found is not None
    return found


async def away(cluster: LocalCluster, of: AttemptPlan) -> None:
    await cluster.teardown(of.job, attempt=of.attempt, term=of.term)


async def said(node: NodeProcess, cluster: LocalCluster, command: str) -> list[str]:
    """What a learner of its own sees, line by line."""
    one = plan([f"exec 2>&1; {command}"])
    await start(cluster, one)
    await end(cluster, one)
    out = node.output(one).splitlines()
    await away(cluster, one)
    return out


def enforced(node: NodeProcess, what: str) -> bool:
    """Whether the kernel sees to it here; if not, the agent must have told why."""
    told = node.reported_isolation
    if what not in told["enforced"]:
        assert "not enforced" in told["why"]
        return False
    return True


async def test_a_learner_sees_the_system_and_nothing_of_this_machine_s_people(
    sandbox: NodeProcess, in_sandbox: LocalCluster
) -> None:
    home = sandbox.home.root
    seen = await said(sandbox, in_sandbox, f"ls -d /root /home /var/lib /etc/shadow {home}/run {home}/secrets; ls /etc")
    assert [line for line in seen if line.startswith("ls: cannot access")] == [
        f"ls: cannot access '{path}': No such file or directory"
        for path in ("/root", "/home", "/var/lib", "/etc/shadow", f"{home}/run", f"{home}/secrets")
    ]
    assert {"passwd", "group", "hosts", "nsswitch.conf"} <= {*seen}
    assert not {"shadow", "sudoers", "machine-id", "ssh"} & {*seen}


async def test_a_learner_sees_no_process_but_its_own(sandbox: NodeProcess, in_sandbox: LocalCluster) -> None:
    neighbour = plan([FOREVER])
    await start(in_sandbox, neighbour)
    (pid,) = await until(lambda: living_with(neighbour.job, program="sleep"))
    see = "for one in /proc/[0-9]*; do cat $one/cmdline | tr '\\0' ' '; echo; done"
    seen = await said(sandbox, in_sandbox, f"kill -0 {pid} || echo no such process; {see}")
    assert "no such process" in seen
    assert not [line for line in seen if neighbour.job in line or "services.node" in line]
    await away(in_sandbox, neighbour)


async def test_only_its_own_folder_can_be_written(sandbox: NodeProcess, in_sandbox: LocalCluster) -> None:
    tries = ["/usr/x", "/etc/x", "/x", "/var/x", "/sys/x", f"{sandbox.home.root}/sdk/x", "$DATA_DIR/x"]
    own = ["/tmp/x", "/var/tmp/y", "/dev/shm/x", "$RESULT_DIR/x", "$HOME/x", "$TMPDIR/z", "./x"]
    write = "for one in {}; do (echo > $one) 2> /dev/null && echo $one; done; "
    seen = await said(sandbox, in_sandbox, write.format(" ".join(tries)) + "echo own; " + write.format(" ".join(own)))
    assert seen[0] == "own"
    assert len(seen) == 1 + len(own)
    assert not Path("/tmp/x").exists()


async def test_a_learner_has_a_name_and_a_home(sandbox: NodeProcess, in_sandbox: LocalCluster) -> None:
    ask = "import os, pwd; print(pwd.getpwuid(os.getuid()).pw_name, os.path.expanduser('~') == os.environ['HOME'])"
    assert await said(sandbox, in_sandbox, f'python3 -c "{ask}"') == ["weft True"]


async def test_data_of_this_machine_is_there_to_read(sandbox: NodeProcess, in_sandbox: LocalCluster) -> None:
    data = Path(f"{sandbox.home.root.parent}/data-set")
    data.mkdir(mode=0o755)
    (data / "x.csv").write_text("1,2\n")
    one = plan(["cat $DATA_DIR/set/x.csv; echo > $DATA_DIR/set/x.csv || echo kept"])
    one = replace(one, inputs=(Input(mount="set", type="local", location=str(data)),))
    await in_sandbox.do("reserve", one)
    (sandbox.folder(one) / "job/data/set").symlink_to(data)  # as the helper does
    await start(in_sandbox, one)
    await end(in_sandbox, one)
    assert sandbox.output(one) == "1,2\nkept\n"
    await away(in_sandbox, one)


async def test_a_learner_that_takes_more_memory_than_it_asked_for_is_ended_and_its_neighbour_is_not(
    either: NodeProcess, in_either: LocalCluster
) -> None:
    if not enforced(either, "memory"):
        return
    hog, neighbour = plan([HOG], memory=2**26), plan(["until [ -e end ]; do sleep 0.01; done; kill -KILL $$"])
    await start(in_either, neighbour)
    await start(in_either, hog)
    ended = await end(in_either, hog)
    assert (ended.oom, ended.stop_cause) == (True, "")
    (either.folder(neighbour) / "job/model-code/end").touch()
    ended = await end(in_either, neighbour)
    assert (ended.oom, ended.signal) == (False, 9)
    for one in (hog, neighbour):
        await away(in_either, one)


async def test_a_worker_that_takes_too_much_is_why_its_program_fails(
    either: NodeProcess, in_either: LocalCluster
) -> None:
    if not enforced(either, "memory"):
        return
    one = plan([f"{HOG} || exit 3"], memory=2**26)
    await start(in_either, one)
    ended = await end(in_either, one)
    assert (ended.oom, ended.code) == (True, 3)
    await away(in_either, one)


async def test_a_fork_bomb_is_bounded_and_gone_within_a_second(either: NodeProcess, in_either: LocalCluster) -> None:
    if not enforced(either, "pids"):
        return
    forks = "(while :; do sleep 1000 & done) 2> /dev/null &"  # until it may not
    for stopwatch in tries_within(2):
        bomb = plan([f"{forks} {forks} {forks} exec sleep 1000"], memory=2**29)
        await start(in_either, bomb)
        groups = either.read(bomb, "learner.json")["groups"]
        await until(lambda: len(cgroups.members(groups)) > PIDS - 10)  # noqa: B023 - in this round only
        assert len(cgroups.members(groups)) <= PIDS
        with stopwatch:
            await away(in_either, bomb)
        assert living_with(bomb.job) == []
        assert not [group for group in groups if Path(group).exists()]


async def test_hundreds_of_processes_are_killed_within_a_second(either: NodeProcess, in_either: LocalCluster) -> None:
    for stopwatch in tries_within(1):
        many = plan(["trap '' TERM; for one in $(seq 250); do sleep 1000 & done; echo up; wait"])
        await start(in_either, many)
        await until(lambda: either.output(many) == "up\n")  # noqa: B023 - in this round only
        with stopwatch:
            await in_either.stop(many.job, attempt=1, term=1, generation=2, cause="kill", grace_ms=0)
            ended = await end(in_either, many)
        assert (ended.signal, ended.stop_cause, ended.oom) == (9, "kill", False)
        assert living_with(f"{many.job}/1/worker-0/job") == []
        await away(in_either, many)


async def test_nobody_who_leaves_the_session_and_its_environment_outlives_a_killed_shim(
    either: NodeProcess, in_either: LocalCluster
) -> None:
    seconds = f"1000.{time.time_ns()}"  # known by its argument alone: nobody else's sleep has the same
    one = plan([f"env -i setsid sleep {seconds} & {FOREVER}"])
    await start(in_either, one)
    await until((either.folder(one) / "runs/1/start.json").exists)
    await until(lambda: len(living_with(one.job, program="sleep")) == len(living_with(seconds, program="sleep")) == 1)
    os.kill(either.read(one, "shim.json")["pid"], signal.SIGKILL)
    assert (await end(in_either, one)).lost
    if os.geteuid() == 0 or enforced(either, "pids"):
        assert living_with(seconds, program="sleep") == []
    await away(in_either, one)


async def test_groups_that_nobody_has_are_gone_after_a_restart(either: NodeProcess, in_either: LocalCluster) -> None:
    if not enforced(either, "memory"):
        return
    one = plan([FOREVER])
    await start(in_either, one)
    groups = [Path(path) for path in either.read(one, "learner.json")["groups"]]
    leftovers = [path.with_name("j0.1.worker-0") for path in groups]
    for leftover in leftovers:
        leftover.mkdir()
    either.end(signal.SIGKILL)
    either.start()
    assert [path.exists() for path in groups] == [True] * len(groups)
    assert [path.exists() for path in leftovers] == [False] * len(groups)
    await away(in_either, one)


@pytest.fixture
def programs() -> Generator[Path]:
    """A PATH for everybody, on which all is but bubblewrap."""
    folder = Path(tempfile.mkdtemp(prefix="weft-path-"))
    folder.chmod(0o755)
    for path in Path("/usr/bin").iterdir():
        if path.name != "bwrap":
            (folder / path.name).symlink_to(path)
    yield folder
    shutil.rmtree(folder)


def test_without_bubblewrap_learners_are_processes_and_the_reason_is_told(programs: Path) -> None:
    with node_process({"PATH": str(programs)}) as node:
        assert node.isolation == "process"
        assert "apt-get install bubblewrap" in node.reported_isolation["why"]


def test_a_sandbox_that_is_asked_for_and_cannot_be_had_is_refused(programs: Path) -> None:
    said = "WEFT_NODE_ISOLATION=sandbox cannot be had: bubblewrap is not installed: apt-get install bubblewrap"
    with (
        pytest.raises(AssertionError, match=said),
        node_process({"PATH": str(programs), "WEFT_NODE_ISOLATION": "sandbox"}),
    ):
        pass


def test_a_bubblewrap_that_does_not_work_here_is_found_out_at_the_start(programs: Path) -> None:
    (programs / "bwrap").write_text("#!/bin/sh\necho bwrap: No permissions to create new namespace >&2\nexit 1\n")
    (programs / "bwrap").chmod(0o755)
    with node_process({"PATH": str(programs)}) as node:
        assert node.isolation == "process"
        assert "No permissions to create new namespace" in node.reported_isolation["why"]
