"""Isolation of learners on one machine: what they see of each other, and what they can take from each other.

If no control groups can be made on this machine, the tests of their limits assert that the agent reports it.
"""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import AsyncGenerator, Generator
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.adapters.local.cluster import LocalCluster
from services.core.domain.plan import Input
from services.node import cgroups
from tests.testbed.gangs import await_exit, start, teardown
from tests.testbed.node import NodeProcess, living_with, node_process, output_of, plan
from tests.waiting import tries_within, until

FOREVER = "exec sleep 1000"
PIDS = 300
HOG = "python3 -c 'x = b\"x\" * (1 << 29)'"


@pytest.fixture(scope="module", params=["process", "sandbox"])
def either(request: pytest.FixtureRequest) -> Generator[NodeProcess]:
    with node_process({"WEFT_NODE_ISOLATION": request.param, "WEFT_NODE_PIDS": str(PIDS)}) as running:
        yield running


@pytest.fixture(scope="module")
def sandbox() -> Generator[NodeProcess]:
    with node_process({"WEFT_NODE_ISOLATION": "sandbox"}) as running:
        yield running


@pytest.fixture
async def in_either(either: NodeProcess) -> AsyncGenerator[LocalCluster]:
    client = await either.cluster()
    yield client
    await client.close()


@pytest.fixture
async def in_sandbox(sandbox: NodeProcess) -> AsyncGenerator[LocalCluster]:
    client = await sandbox.cluster()
    yield client
    await client.close()


def is_enforced(node: NodeProcess, limit: str) -> bool:
    """True if the kernel enforces the limit on this machine. If not, asserts that the agent reports why."""
    reported = node.reported_isolation
    if limit not in reported["enforced"]:
        assert "not enforced" in reported["why"]
        return False
    return True


async def test_a_sandboxed_learner_sees_the_system_but_no_homes_and_secrets(
    sandbox: NodeProcess, in_sandbox: LocalCluster
) -> None:
    home = sandbox.home.root
    lines = await output_of(
        sandbox, in_sandbox, f"ls -d /root /home /var/lib /etc/shadow {home}/run {home}/secrets; ls /etc"
    )
    assert [line for line in lines if line.startswith("ls: cannot access")] == [
        f"ls: cannot access '{path}': No such file or directory"
        for path in ("/root", "/home", "/var/lib", "/etc/shadow", f"{home}/run", f"{home}/secrets")
    ]
    assert {"passwd", "group", "hosts", "nsswitch.conf"} <= {*lines}
    assert not {"shadow", "sudoers", "machine-id", "ssh"} & {*lines}


async def test_a_sandboxed_learner_sees_its_own_environment_and_no_other(
    sandbox: NodeProcess, in_sandbox: LocalCluster
) -> None:
    top = sandbox.home / "cache" / "envs"
    for name in ("own", "others"):
        (top / name / "venv" / "bin").mkdir(parents=True)
        (top / name / "venv" / "bin" / "program").write_text(f"#!/bin/sh\necho {name}\n")
        (top / name / "venv" / "bin" / "program").chmod(0o755)
    gang = plan([f"program; ls {top}; cat {top}/others/venv/bin/program"])
    await in_sandbox.do("reserve", gang)
    prepared = {"path": [str(top / "own" / "venv" / "bin")]}
    (sandbox.folder(gang) / "spool" / "prepared").write_text(json.dumps(prepared))
    await start(in_sandbox, gang)
    assert (await await_exit(in_sandbox, gang)).code == 1
    assert sandbox.output(gang) == "own\nown\n"
    assert "No such file or directory" in sandbox.output(gang, stream="stderr")
    await teardown(in_sandbox, gang)


async def test_a_sandboxed_learner_sees_only_its_own_processes(sandbox: NodeProcess, in_sandbox: LocalCluster) -> None:
    neighbour = plan([FOREVER])
    await start(in_sandbox, neighbour)
    (pid,) = await until(lambda: living_with(neighbour.job, program="sleep"))
    list_all = "for entry in /proc/[0-9]*; do cat $entry/cmdline | tr '\\0' ' '; echo; done"
    lines = await output_of(sandbox, in_sandbox, f"kill -0 {pid} || echo no such process; {list_all}")
    assert "no such process" in lines
    assert not [line for line in lines if neighbour.job in line or "services.node" in line]
    await teardown(in_sandbox, neighbour)


async def test_a_sandboxed_learner_can_write_only_its_own_folders(
    sandbox: NodeProcess, in_sandbox: LocalCluster
) -> None:
    tries = ["/usr/x", "/etc/x", "/x", "/var/x", "/sys/x", f"{sandbox.home.root}/sdk/x", "$DATA_DIR/x"]
    shared = [f"{folder}/weft-test-{uuid.uuid4().hex}" for folder in ("/tmp", "/var/tmp", "/dev/shm")]
    own = [*shared, "$RESULT_DIR/x", "$HOME/x", "$TMPDIR/z", "./x"]
    write = "for path in {}; do (echo > $path) 2> /dev/null && echo $path; done; "
    lines = await output_of(
        sandbox, in_sandbox, write.format(" ".join(tries)) + "echo own; " + write.format(" ".join(own))
    )
    assert lines[0] == "own"
    assert len(lines) == 1 + len(own)
    assert not [path for path in shared if Path(path).exists()], "the machine's own folders"


async def test_a_sandboxed_learner_has_a_user_name_and_a_home(sandbox: NodeProcess, in_sandbox: LocalCluster) -> None:
    ask = "import os, pwd; print(pwd.getpwuid(os.getuid()).pw_name, os.path.expanduser('~') == os.environ['HOME'])"
    assert await output_of(sandbox, in_sandbox, f'python3 -c "{ask}"') == ["weft True"]


async def test_local_data_is_readable_and_read_only_in_the_sandbox(
    sandbox: NodeProcess, in_sandbox: LocalCluster
) -> None:
    data = Path(f"{sandbox.home.root.parent}/data-set")
    data.mkdir(mode=0o755)
    (data / "x.csv").write_text("1,2\n")
    gang = plan(["cat $DATA_DIR/set/x.csv; echo > $DATA_DIR/set/x.csv || echo kept"])
    gang = replace(gang, inputs=(Input(mount="set", type="local", location=str(data)),))
    await in_sandbox.do("reserve", gang)
    (sandbox.folder(gang) / "job/data/set").symlink_to(data)  # as the helper does
    await start(in_sandbox, gang)
    await await_exit(in_sandbox, gang)
    assert sandbox.output(gang) == "1,2\nkept\n"
    await teardown(in_sandbox, gang)


async def test_a_learner_over_its_memory_limit_is_killed_and_its_neighbour_is_not(
    either: NodeProcess, in_either: LocalCluster
) -> None:
    if not is_enforced(either, "memory"):
        return
    hog, neighbour = plan([HOG], memory=2**26), plan(["until [ -e end ]; do sleep 0.01; done; kill -KILL $$"])
    await start(in_either, neighbour)
    await start(in_either, hog)
    ended = await await_exit(in_either, hog)
    assert (ended.oom, ended.stop_cause) == (True, "")
    (either.folder(neighbour) / "job/model-code/end").touch()
    ended = await await_exit(in_either, neighbour)
    assert (ended.oom, ended.signal) == (False, 9)
    for gang in (hog, neighbour):
        await teardown(in_either, gang)


async def test_an_exit_caused_by_a_killed_child_is_reported_as_out_of_memory(
    either: NodeProcess, in_either: LocalCluster
) -> None:
    if not is_enforced(either, "memory"):
        return
    gang = plan([f"{HOG} || exit 3"], memory=2**26)
    await start(in_either, gang)
    ended = await await_exit(in_either, gang)
    # cgroup v2 kills the whole group, as the agent asks it to: no half of a learner is left that waits for the other.
    whole = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    assert (ended.oom, ended.code, ended.signal) == ((True, None, 9) if whole else (True, 3, None))
    await teardown(in_either, gang)


async def test_a_fork_bomb_is_bounded_and_removed_within_two_seconds(
    either: NodeProcess, in_either: LocalCluster
) -> None:
    if not is_enforced(either, "pids"):
        return
    forks = "(while :; do sleep 1000 & done) 2> /dev/null &"  # until it may not
    for stopwatch in tries_within(2):
        bomb = plan([f"{forks} {forks} {forks} exec sleep 1000"], memory=2**29)
        await start(in_either, bomb)
        groups = either.read(bomb, "learner.json")["groups"]
        await until(lambda: len(cgroups.members(groups)) > PIDS - 10)  # noqa: B023 - in this round only
        assert len(cgroups.members(groups)) <= PIDS
        with stopwatch:
            await teardown(in_either, bomb)
        assert living_with(bomb.job) == []
        assert not [group for group in groups if Path(group).exists()]


async def test_hundreds_of_processes_are_killed_within_a_second(either: NodeProcess, in_either: LocalCluster) -> None:
    for stopwatch in tries_within(1):
        many = plan(["trap '' TERM; for number in $(seq 250); do sleep 1000 & done; echo up; wait"])
        await start(in_either, many)
        await until(lambda: either.output(many) == "up\n")  # noqa: B023 - in this round only
        with stopwatch:
            await in_either.stop(many.job, attempt=1, term=1, generation=2, cause="kill", grace_ms=0)
            ended = await await_exit(in_either, many)
        assert (ended.signal, ended.stop_cause, ended.oom) == (9, "kill", False)
        assert living_with(f"{many.job}/1/worker-0/job") == []
        await teardown(in_either, many)


async def test_processes_without_session_and_environment_are_killed_when_the_shim_dies(
    either: NodeProcess, in_either: LocalCluster
) -> None:
    seconds = f"1000.{time.time_ns()}"  # known by its argument only: no other sleep has the same
    gang = plan([f"env -i setsid sleep {seconds} & {FOREVER}"])
    await start(in_either, gang)
    await until((either.folder(gang) / "runs/1/start.json").exists)
    await until(lambda: len(living_with(gang.job, program="sleep")) == len(living_with(seconds, program="sleep")) == 1)
    os.kill(either.read(gang, "shim.json")["pid"], signal.SIGKILL)
    assert (await await_exit(in_either, gang)).lost
    if os.geteuid() == 0 or is_enforced(either, "pids"):
        assert living_with(seconds, program="sleep") == []
    await teardown(in_either, gang)


async def test_a_helper_is_in_a_control_group_of_its_own(either: NodeProcess, in_either: LocalCluster) -> None:
    if not is_enforced(either, "memory"):
        return
    gang = plan([FOREVER])
    await start(in_either, gang)
    own = either.read(gang, "learner.json")["groups"]
    await until((either.folder(gang) / "helper.json").exists)
    helper = either.read(gang, "helper.json")["pid"]
    await until(lambda: cgroups.members([f"{own[0]}.helper"]) == {helper})
    assert helper not in cgroups.members(own)
    await teardown(in_either, gang)
    assert not [group for group in own if Path(f"{group}.helper").exists()]


async def test_control_groups_without_a_learner_are_removed_after_a_restart(
    either: NodeProcess, in_either: LocalCluster
) -> None:
    if not is_enforced(either, "memory"):
        return
    gang = plan([FOREVER])
    await start(in_either, gang)
    groups = [Path(path) for path in either.read(gang, "learner.json")["groups"]]
    leftovers = [path.with_name("j0.1.worker-0") for path in groups]
    for leftover in leftovers:
        leftover.mkdir()
    either.end(signal.SIGKILL)
    either.start()
    assert [path.exists() for path in groups] == [True] * len(groups)
    assert [path.exists() for path in leftovers] == [False] * len(groups)
    await teardown(in_either, gang)


def test_without_bubblewrap_the_isolation_is_process_and_the_reason_is_reported(no_bubblewrap: Path) -> None:
    with node_process({"PATH": str(no_bubblewrap)}) as node:
        assert node.isolation == "process"
        assert "apt-get install bubblewrap" in node.reported_isolation["why"]


def test_an_agent_configured_for_a_sandbox_does_not_start_without_bubblewrap(no_bubblewrap: Path) -> None:
    message = "WEFT_NODE_ISOLATION=sandbox does not work: bubblewrap is not installed: apt-get install bubblewrap"
    with (
        pytest.raises(AssertionError, match=message),
        node_process({"PATH": str(no_bubblewrap), "WEFT_NODE_ISOLATION": "sandbox"}),
    ):
        pass


def test_a_bubblewrap_that_does_not_work_is_detected_at_the_start(no_bubblewrap: Path) -> None:
    (no_bubblewrap / "bwrap").write_text("#!/bin/sh\necho bwrap: No permissions to create new namespace >&2\nexit 1\n")
    (no_bubblewrap / "bwrap").chmod(0o755)
    with node_process({"PATH": str(no_bubblewrap)}) as node:
        assert node.isolation == "process"
        assert "No permissions to create new namespace" in node.reported_isolation["why"]
