"""Failpoints: a process kills itself at the armed point, once; without WEFT_FAILPOINTS there are none."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.core.domain.errors import Unavailable
from services.core.domain.job import admitted
from services.core.failpoints import points as failpoints
from services.core.failpoints.points import VARIABLE, Failpoints, read_line
from services.core.failpoints.ports import at_failpoints
from services.core.ports.job_store import JobQuery, JobStore
from services.core.ports.object_urls import ObjectUrls
from tests.documents import a_job
from tests.testbed.failpoints import FailpointFolder
from tests.testbed.memory.jobs import MemoryJobStore

WRITES = """
import os, pathlib, sys
home = pathlib.Path(sys.argv[1])
(home / "a.tmp").write_text("whole")
(home / "a.tmp").rename(home / "a")
(home / "a").read_text()
if os.fork() == 0:
    (home / "child").touch()
    os._exit(0)
os.wait()
(home / "done").touch()
"""


@pytest.fixture
def folder(tmp_path: Path) -> FailpointFolder:
    return FailpointFolder(tmp_path / "failpoints")


def run(folder: FailpointFolder, home: Path) -> int:
    """Runs a script under failpoints, as the node agent starts shims. Returns its exit code."""
    script = home.parent / "script.py"
    script.write_text(WRITES)
    home.mkdir(exist_ok=True)
    argv = ["-I", "-S", failpoints.__file__, folder.environment[VARIABLE], "script", str(home), str(script), str(home)]
    return subprocess.run([sys.executable, *argv], check=False, capture_output=True).returncode


def test_each_change_of_a_file_is_a_point_and_a_read_is_not(folder: FailpointFolder, tmp_path: Path) -> None:
    assert run(folder, tmp_path / "home") == 0
    assert folder.passed() == ["script.open a.tmp", "script.rename a", "script.fork", "script.open done"]


def test_a_process_is_killed_before_the_armed_change_and_only_the_first_time(
    folder: FailpointFolder, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    folder.arm("before", "kill", "script.rename a")
    assert run(folder, home) == -signal.SIGKILL
    assert [path.name for path in home.iterdir()] == ["a.tmp"]
    assert folder.fired
    assert run(folder, home) == 0
    assert {path.name for path in home.iterdir()} == {"a", "child", "done"}


def test_a_change_of_a_file_that_is_cut_raises_an_os_error(folder: FailpointFolder, tmp_path: Path) -> None:
    folder.arm("before", "cut", "script.rename a")
    assert run(folder, tmp_path / "home") == 1
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["a.tmp"]


@dataclass(frozen=True)
class Ports:
    jobs: JobStore
    secret: bytes
    urls: ObjectUrls | None = None


async def test_ports_are_unchanged_without_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    ports = Ports(MemoryJobStore(), b"secret")
    assert at_failpoints(ports, "lcm") is ports


async def test_each_call_of_a_port_is_a_point_named_after_its_subject(
    folder: FailpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, folder.environment[VARIABLE])
    ports = at_failpoints(Ports(MemoryJobStore(), b"secret"), "lcm")
    job = await ports.jobs.insert(a_job())
    await ports.jobs.replace(job, admitted(job, placement={}, dispatcher_term=1, now=job.created))
    await ports.jobs.get(job.id)
    await ports.jobs.find(JobQuery(holding=True))
    assert (ports.secret, ports.urls) == (b"secret", None)
    assert folder.passed() == [
        "lcm.jobs.insert(QUEUED)",
        "lcm.jobs.replace(PENDING)",
        "lcm.jobs.get",
        "lcm.jobs.find(holding)",
    ]


@pytest.mark.parametrize(("when", "stored"), [("before", 0), ("done", 1)])
async def test_a_call_that_is_cut_raises_unavailable_and_has_its_effect_only_when_done(
    folder: FailpointFolder, monkeypatch: pytest.MonkeyPatch, when: str, stored: int
) -> None:
    monkeypatch.setenv(VARIABLE, folder.environment[VARIABLE])
    store, job = MemoryJobStore(), a_job()
    ports = at_failpoints(Ports(store, b""), "api")
    folder.arm(when, "cut", "api.jobs.insert(QUEUED)")
    with pytest.raises(Unavailable):
        await ports.jobs.insert(job)
    assert len(await store.find(JobQuery())) == stored


async def test_answered_means_that_the_caller_runs_until_it_waits_next(folder: FailpointFolder, tmp_path: Path) -> None:
    folder.arm("answered", "kill", "api.store.put")
    script = tmp_path / "script.py"
    script.write_text(ANSWERED)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), env={**os.environ, **folder.environment}, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert (output, process.returncode) == (b"had the answer\n", -signal.SIGKILL)


ANSWERED = """
import asyncio, os
from services.core.failpoints.ports import at_failpoint

class Store:
    async def put(self): return "answer"

async def main():
    answer = await at_failpoint(Store(), "store", "api").put()
    os.write(1, f"had the {answer}\\n".encode())
    await asyncio.sleep(0)
    os.write(1, b"went on")

asyncio.run(main())
"""


async def test_streams_and_plain_methods_are_passed_through(
    folder: FailpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watches:
        async def watch(self) -> AsyncGenerator[int]:
            yield 1

        def steps(self) -> list[str]:
            return ["reserve"]

    @dataclass(frozen=True)
    class ClusterPorts:
        cluster: Watches

    monkeypatch.setenv(VARIABLE, folder.environment[VARIABLE])
    ports = at_failpoints(ClusterPorts(Watches()), "lcm")
    assert [item async for item in ports.cluster.watch()] == [1]
    assert ports.cluster.steps() == ["reserve"]


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(ValueError, match="nobody else"):
        Failpoints(tmp_path, "api")


@pytest.mark.parametrize("line", ["", "kill api.jobs.get", "before kill", "later kill api.jobs.get", "before maim x"])
def test_a_malformed_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="is expected"):
        read_line(line)
