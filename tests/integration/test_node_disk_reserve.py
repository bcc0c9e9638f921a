"""A part of the learners' disk stays free for the platform, whatever a learner does to hide what it writes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from services.core.adapters.local.cluster import LocalCluster
from services.core.domain.plan import AttemptPlan
from services.core.runtime.processes import identify
from services.node import shutdown
from services.node.freezing import freeze
from services.node.learner import Learner, read_learner
from tests.testbed.gangs import await_exit, learner, start, teardown
from tests.testbed.isolations import VARIANTS, Variant
from tests.testbed.node import NodeProcess, plan
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can be mounted by root only")
MB = 1_000_000
RESERVE = 64 * MB


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: variant.name)
def node(request: pytest.FixtureRequest) -> Generator[NodeProcess]:
    variant: Variant = request.param
    bounds = {
        "WEFT_NODE_DISK": "1GB",
        "WEFT_NODE_TENANT_DISK": "1GB",
        "WEFT_NODE_DISK_RESERVE": str(RESERVE),
        "WEFT_NODE_DISK_CHECK_S": "0.1",
    }
    place = Path(tempfile.mkdtemp(prefix="weft-disk-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m,mode=755", "weft-test", place], check=True)
    try:
        with variant.node(bounds, where=place) as running:
            yield running
    finally:  # lazy: what was killed may still be ending
        subprocess.run(["umount", "--lazy", place], check=True)
        place.rmdir()


def writes(megabytes: int, tenant: str) -> AttemptPlan:
    command = f"head -c {megabytes * MB} /dev/zero > $RESULT_DIR/data; touch $RESULT_DIR/done; exec sleep 1000"
    return plan([command], tenant=tenant)


async def has_written(node: NodeProcess, gang: AttemptPlan) -> None:
    async def is_done() -> bool:
        return next(node.folder(gang).glob("job/results/**/done"), None) is not None

    await until(is_done)


MOVES = """
cd "$HOME"; mkdir -p a/x b
exec 3> a/x/large
while mv a/x b/x && mv b/x a/x; do :; done &
head -c 50000000 /dev/zero >&3
while head -c 100000 /dev/zero >&3; do sleep 0.025; done
"""
"""Moves what it writes, so that a walk through its folders misses it. Once the disk is full it ends by itself: the
reserve lasts for a quarter of a minute at least.
"""


async def test_learner_that_moves_its_files_while_it_fills_the_disk_is_ended_and_its_neighbour_is_not(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    honest = writes(4, "t")
    await start(cluster, honest)
    await has_written(node, honest)
    hog = plan([MOVES], tenant="t" if node.isolation == "trusted" else "hog")
    await start(cluster, hog)
    end = await await_exit(cluster, hog)
    assert end.disk_exceeded.endswith("(WEFT_NODE_DISK_RESERVE)")
    assert shutil.disk_usage(node.home.root).free > 0
    assert (await learner(cluster, honest)).state == "running"
    for gang in (honest, hog):
        await teardown(cluster, gang)


async def test_no_learner_is_ended_for_what_the_operator_copies(node: NodeProcess, cluster: LocalCluster) -> None:
    node.end(signal.SIGTERM)  # the next agent knows nothing of the room that an earlier test has used and given back
    node.start()
    honest = writes(20, "t")
    await start(cluster, honest)
    await has_written(node, honest)
    before = node.log.count("disk.reserve_used")
    copied = node.home.root / "copied"
    copied.write_bytes(bytes(60 * MB))
    await until(lambda: node.log.count("disk.reserve_used") > before)
    assert (await learner(cluster, honest)).state == "running"
    copied.unlink()
    await teardown(cluster, honest)


async def running(node: NodeProcess, cluster: LocalCluster) -> AttemptPlan:
    """A job whose learner prints all the time."""
    gang = plan(["while :; do echo x; sleep 0.02; done"])
    await start(cluster, gang)
    await until(lambda: node.output(gang))
    return gang


def frozen_learner(node: NodeProcess, gang: AttemptPlan) -> Learner:
    """The job's learner, frozen as by the agent while it counts files."""
    frozen = read_learner(node.folder(gang))
    assert frozen is not None
    assert freeze(frozen)
    return frozen


async def test_learner_that_a_killed_agent_has_left_frozen_runs_again_under_the_next(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    gang = await running(node, cluster)
    node.end(signal.SIGKILL)
    frozen = frozen_learner(node, gang)
    pid = node.read(gang, "runs/1/start.json")["pid"]
    has_v2 = any(Path(group, "cgroup.freeze").exists() for group in frozen.document.groups)  # shown as sleeping there
    if not has_v2:  # a process that waits for a CPU stops as soon as it gets one
        await until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"D", "T"})
    (node.home / "node" / ".agent" / "frozen").touch()
    written = node.output(gang)
    node.start()
    await until(lambda: len(node.output(gang)) > len(written))
    await until(lambda: not (node.home / "node" / ".agent" / "frozen").exists())  # removed last
    await teardown(cluster, gang)


async def test_learner_that_a_killed_agent_has_left_frozen_is_ended_by_weft_down(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    gang = await running(node, cluster)
    node.end(signal.SIGKILL)
    frozen_learner(node, gang)
    pid = node.read(gang, "runs/1/start.json")["pid"]
    await asyncio.to_thread(shutdown.end_all, node.home / "node")
    await until(lambda: identify(pid) is None)
    node.start()
    await teardown(cluster, gang)


async def test_learner_whose_shim_was_killed_while_it_had_frozen_it_gives_its_hardware_back(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    """A shim freezes its learner to kill all of its processes at once."""
    gang = await running(node, cluster)
    shim = frozen_learner(node, gang).shim
    assert shim is not None
    os.kill(shim.pid, signal.SIGKILL)
    await teardown(cluster, gang)
