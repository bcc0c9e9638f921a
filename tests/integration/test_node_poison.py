"""Damaged files of a learner: its own job comes to an end, and other jobs are not affected."""

from __future__ import annotations

import random
import signal
from collections.abc import Generator
from pathlib import Path

import grpc.aio
import pytest

from services.core.adapters.local.cluster import LocalCluster
from services.core.adapters.rpc.operations import ask_quarantine
from services.core.domain.plan import AttemptPlan
from services.core.ports.cluster import LearnerProcess
from services.core.runtime.processes import identify
from services.core.runtime.quarantine import LEARNER, QuarantineEntry
from tests.testbed.gangs import await_exit, await_state, learner, observe, start, stop, teardown
from tests.testbed.node import NodeProcess, living_with, node_process, plan
from tests.waiting import HANG_S, until

FOREVER = "exec sleep 600"
GARBAGE = {
    "nothing": b"",
    "other types": b'{"pid": "x", "start_time": [], "boot_id": {}, "time": "now", "cause": 1, "code": "a"}',
    "nested": b"[" * 50_000,
    "time out of range": b'{"schema": 1, "pid": 1, "start_time": 1, "boot_id": "b", "time": 1e999, "code": 0}',
}


@pytest.fixture(scope="module")
def node() -> Generator[NodeProcess]:
    with node_process() as running:
        yield running


async def run(cluster: LocalCluster, gang: AttemptPlan) -> LearnerProcess:
    """The running process of a gang of one."""
    await start(cluster, gang)
    return await await_state(cluster, gang, "running")


def poison(path: Path, content: bytes) -> None:
    """Replaces the file by one rename, so that no reader sees half of it."""
    temporary = path.with_name(f".{path.name}.poison")
    temporary.write_bytes(content)
    temporary.replace(path)


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE.keys())
async def test_a_learner_with_damaged_files_can_be_stopped_and_removed(
    node: NodeProcess, cluster: LocalCluster, content: bytes
) -> None:
    good, bad = plan([FOREVER]), plan([FOREVER])
    before = await run(cluster, good)
    victim = await run(cluster, bad)
    assert victim.pid is not None
    order = random.Random(7).sample(["shim.json", "helper.json", "runs/1/start.json"], 3)
    for name in order:
        poison(node.folder(bad) / name, content)
        assert (await observe(cluster, bad)).learners[0].state == "running"
    await cluster.stop(bad.job, attempt=1, term=1, generation=1, cause="halt", grace_ms=2_000)
    await await_exit(cluster, bad)
    assert identify(victim.pid) is None
    poison(node.folder(bad) / "runs/1/exit.json", content)
    lost = (await observe(cluster, bad)).learners[0].exit
    assert lost is not None
    assert lost.lost
    poison(node.home / "node" / ".agent" / "fences" / f"{bad.job}.json", content)
    await teardown(cluster, bad)
    assert (await observe(cluster, bad)).attempts == []
    assert living_with(bad.job) == []
    assert (await observe(cluster, good)).learners == [before]
    await teardown(cluster, good)


async def test_a_damaged_stop_mark_is_ignored_and_the_next_stop_works(node: NodeProcess, cluster: LocalCluster) -> None:
    gang = plan([FOREVER])
    before = await run(cluster, gang)
    poison(node.folder(gang) / "stop.json", b'{"cause": ')
    assert await learner(cluster, gang) == before
    await stop(cluster, gang, "kill")
    end = await await_exit(cluster, gang)
    assert (end.signal, end.stop_cause) == (signal.SIGKILL, "kill")
    await teardown(cluster, gang)


async def test_a_running_learner_with_a_damaged_learner_json_is_observed_and_removed(
    cluster: LocalCluster, node: NodeProcess, channel: grpc.aio.Channel
) -> None:
    good, bad = plan([FOREVER]), plan([FOREVER])
    before, victim = await run(cluster, good), await run(cluster, bad)
    assert victim.pid is not None
    document = node.folder(bad) / "learner.json"
    sound = document.read_bytes()
    node.end(signal.SIGKILL)
    poison(document, b'{"schema": 1, "plan": 3}')
    node.start()
    (process,) = (await observe(cluster, bad)).learners
    assert (process.name, process.state, process.exit) == ("worker-0", "running", None)

    async def quarantined() -> list[QuarantineEntry]:
        entries = await ask_quarantine(channel, timeout_s=HANG_S)
        return [entry for entry in entries if entry.place == str(document)]

    (entry,) = await until(quarantined)
    assert (entry.kind, entry.job, bool(entry.reason), bool(entry.advice)) == (LEARNER, bad.job, True, True)
    poison(document, sound)  # repaired: the agent adopts it again

    async def released() -> bool:
        return not await quarantined()

    assert await until(released)
    assert (await observe(cluster, bad)).learners == [victim]
    node.end(signal.SIGKILL)
    poison(document, b"")
    node.start()
    assert identify(victim.pid) is not None
    await teardown(cluster, bad)
    assert living_with(bad.job) == []
    assert (await observe(cluster, bad)).attempts == []
    assert (await observe(cluster, good)).learners == [before]
    await teardown(cluster, good)
