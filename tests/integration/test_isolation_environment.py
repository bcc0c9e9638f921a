"""Variables of a job that change how programs start: they reach the learner, and nothing that runs for it outside."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from services.core.adapters.local.cluster import LocalCluster
from services.node.processes import read_table
from tests.testbed.gangs import await_exit, start, teardown
from tests.testbed.isolations import VARIANTS, Variant
from tests.testbed.node import NodeProcess, living_with, plan
from tests.waiting import until

LOADER = {
    "LD_PRELOAD": "/nonexistent/weft-hostile.so",
    "LD_LIBRARY_PATH": "/nonexistent/lib",
    "GCONV_PATH": "/nonexistent/gconv",
    "GLIBC_TUNABLES": "glibc.malloc.perturb=7",
    "LOCPATH": "/nonexistent/locale",
    "MALLOC_TRACE": "/nonexistent/trace",
}
"""Read by the loader and the C library of every program that is started with them."""
STARTUP = {
    "PYTHONSTARTUP": "/nonexistent/startup.py",
    "PYTHONINSPECT": "1",
    "PYTHONVERBOSE": "1",
    "PERL5OPT": "-Mnonexistent",
    "ODD": 'a=b "c"\nd --setenv LANG x',
    "EMPTY": "",
}
"""Read by interpreters; and two values that a careless encoding would lose."""


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: variant.name)
def node(request: pytest.FixtureRequest) -> Generator[NodeProcess]:
    variant: Variant = request.param
    with variant.node() as running:
        yield running


async def test_loader_variables_of_a_job_reach_its_own_processes_only(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan(["until [ -e end ]; do :; done"], env=LOADER)
    await start(cluster, gang)
    (shell,) = await until(lambda: living_with(gang.job, program="sh"))
    environments = {pid: _environment(pid) for pid in (shell, *_ancestors(shell, node.read(gang, "shim.json")["pid"]))}
    assert LOADER.items() <= environments.pop(shell).items()
    for environment in environments.values():
        assert not LOADER.keys() & environment.keys()
    (node.folder(gang) / "job/model-code/end").touch()
    await await_exit(cluster, gang)
    # Each program that is started with the variable complains once. The shell is the only one.
    assert node.output(gang, stream="stderr").count("weft-hostile.so") == 1
    await teardown(cluster, gang)


async def test_bubblewraps_environment_is_empty_and_its_arguments_show_no_variable(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    gang = plan(["exec sleep 1000"], env={"API_TOKEN": "a-secret-of-the-job"})
    await start(cluster, gang)
    (sleep,) = await until(lambda: living_with(gang.job, program="sleep"))
    sandboxes = [pid for pid in _ancestors(sleep, node.read(gang, "shim.json")["pid"]) if _name(pid) == "bwrap"]
    assert bool(sandboxes) == (node.isolation == "sandbox")
    for pid in sandboxes:
        assert Path(f"/proc/{pid}/environ").read_bytes() == b""
        assert b"a-secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    await teardown(cluster, gang)


async def test_all_variables_reach_the_command_unchanged(node: NodeProcess, cluster: LocalCluster) -> None:
    given = {**LOADER, **STARTUP}
    gang = plan(["tr '\\0' '\\1' < /proc/self/environ"], env=given)
    await start(cluster, gang)
    await await_exit(cluster, gang)
    environment = dict(entry.split("=", 1) for entry in node.output(gang).split("\1") if entry)
    assert given.items() <= environment.items()
    await teardown(cluster, gang)


async def test_a_job_with_interpreter_variables_neither_stops_its_shim_nor_its_helper(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    gang = plan(["exit 3"], env={**STARTUP, "PYTHONHOME": "/nonexistent", "LD_BIND_NOW": "1"})
    await start(cluster, gang)
    assert (await await_exit(cluster, gang)).code == 3
    for log in ("shim.log", "helper.log"):
        assert (node.folder(gang) / log).read_text() == ""
    await teardown(cluster, gang)


async def test_the_learner_has_no_descriptor_of_the_platform(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan(["exec ls /proc/self/fd"])
    await start(cluster, gang)
    await await_exit(cluster, gang)
    assert node.output(gang).split() == ["0", "1", "2", "3"]  # the last is that of the listed folder
    await teardown(cluster, gang)


async def test_a_sandbox_whose_shim_died_is_removed_at_teardown(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan(["exec sleep 1000"])
    await start(cluster, gang)
    (sleep,) = await until(lambda: living_with(gang.job, program="sleep"))
    shim = node.read(gang, "shim.json")["pid"]
    family = _ancestors(sleep, shim)
    os.kill(shim, signal.SIGKILL)
    await teardown(cluster, gang)
    assert not read_table().keys() & {sleep, *family}


def _ancestors(pid: int, top: int) -> list[int]:
    """The processes above ``pid`` up to and with ``top``."""
    table = read_table()
    above = []
    while pid != top:
        pid = table[pid].parent
        above.append(pid)
    return above


def _environment(pid: int) -> dict[str, str]:
    content = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(entry.split("=", 1) for entry in content.split("\0") if entry)


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
