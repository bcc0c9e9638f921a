"""Files of a learner that are not as they were written: its own harm, and nobody else's."""

from __future__ import annotations

import random
import signal
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import grpc.aio
import pytest

from services.core.adapters.local.cluster import STEPS, LocalCluster
from services.core.adapters.rpc.client import connect
from services.core.adapters.rpc.operations import ask_quarantine
from services.core.bootstrap.wiring import service_secret
from services.core.domain.learner import Exit
from services.core.domain.plan import AttemptPlan
from services.core.ports.cluster import LearnerProcess
from services.core.runtime.processes import identify
from services.core.runtime.quarantine import LEARNER, QuarantineEntry
from services.core.runtime.settings import Settings
from tests.testbed.node import NodeProcess, living_with, node_process, plan
from tests.waiting import HANG_S, until

FOREVER = "exec sleep 600"
GARBAGE = {
    "nothing": b"",
    "other types": b'{"pid": "x", "start_time": [], "boot_id": {}, "time": "now", "cause": 1, "code": "a"}',
    "nested": b"[" * 50_000,
    "beyond all calendars": b'{"schema": 1, "pid": 1, "start_time": 1, "boot_id": "b", "time": 1e999, "code": 0}',
}


@pytest.fixture(scope="module")
def node() -> Generator[NodeProcess]:
    with node_process() as one:
        yield one


@pytest.fixture
async def cluster(node: NodeProcess) -> AsyncGenerator[LocalCluster]:
    one = await node.cluster()
    yield one
    await one.close()


@pytest.fixture
async def channel(node: NodeProcess) -> AsyncGenerator[grpc.aio.Channel]:
    secret = await service_secret(Settings(home=node.home.root))
    one = connect(node.addresses["node"], secret=secret)
    yield one
    await one.close()


async def run(cluster: LocalCluster, of: AttemptPlan) -> LearnerProcess:
    for step in STEPS:
        await cluster.do(step, of)

    async def runs() -> LearnerProcess | None:
        return await running(cluster, of)

    found = await until(runs)
    assert found is not None
    return found


async def running(cluster: LocalCluster, of: AttemptPlan) -> LearnerProcess | None:
    learners = (await cluster.observe(of.job)).learners
    return next((one for one in learners if one.state == "running"), None)


async def ended(cluster: LocalCluster, of: AttemptPlan) -> Exit:
    async def over() -> Exit | None:
        return next((one.exit for one in (await cluster.observe(of.job)).learners), None)

    found = await until(over)
    assert found is not None
    return found


def poison(path: Path, content: bytes) -> None:
    """As a rename does it: nobody reads half of it."""
    beside = path.with_name(f".{path.name}.poison")
    beside.write_bytes(content)
    beside.replace(path)


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE.keys())
async def test_whatever_its_files_say_a_learner_comes_to_its_end_and_is_removed(
    node: NodeProcess, cluster: LocalCluster, content: bytes
) -> None:
    good, bad = plan([FOREVER]), plan([FOREVER])
    before = await run(cluster, good)
    victim = await run(cluster, bad)
    assert victim.pid is not None
    order = random.Random(7).sample(["shim.json", "helper.json", "runs/1/start.json"], 3)
    for name in order:
        poison(node.folder(bad) / name, content)
        assert (await cluster.observe(bad.job)).learners[0].state == "running"
    await cluster.stop(bad.job, attempt=1, term=1, generation=1, cause="halt", grace_ms=2_000)
    await ended(cluster, bad)
    assert identify(victim.pid) is None
    poison(node.folder(bad) / "runs/1/exit.json", content)
    lost = (await cluster.observe(bad.job)).learners[0].exit
    assert lost is not None
    assert lost.lost
    poison(node.home / "node" / ".agent" / "fences" / f"{bad.job}.json", content)
    await cluster.teardown(bad.job, attempt=1, term=1)
    assert (await cluster.observe(bad.job)).attempts == []
    assert living_with(bad.job) == []
    assert (await cluster.observe(good.job)).learners == [before]
    await cluster.teardown(good.job, attempt=1, term=1)


async def test_a_stop_that_cannot_be_read_is_none_and_the_next_one_counts(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    one = plan([FOREVER])
    before = await run(cluster, one)
    poison(node.folder(one) / "stop.json", b'{"cause": ')
    assert await running(cluster, one) == before
    await cluster.stop(one.job, attempt=1, term=1, generation=1, cause="kill", grace_ms=0)
    end = await ended(cluster, one)
    assert (end.signal, end.stop_cause) == (signal.SIGKILL, "kill")
    await cluster.teardown(one.job, attempt=1, term=1)


async def test_a_running_learner_whose_document_is_ruined_is_seen_until_it_ends_and_leaves_nothing(
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
    (seen,) = (await cluster.observe(bad.job)).learners
    assert (seen.name, seen.state, seen.exit) == ("worker-0", "running", None)

    async def held() -> list[QuarantineEntry]:
        return [one for one in await ask_quarantine(channel, timeout_s=HANG_S) if one.place == str(document)]

    (one,) = await until(held)
    assert (one.kind, one.job, bool(one.reason), bool(one.advice)) == (LEARNER, bad.job, True, True)
    poison(document, sound)  # mended: it is taken up again, by itself

    async def released() -> bool:
        return not await held()

    assert await until(released)
    assert (await cluster.observe(bad.job)).learners == [victim]
    node.end(signal.SIGKILL)
    poison(document, b"")
    node.start()
    assert identify(victim.pid) is not None
    await cluster.teardown(bad.job, attempt=1, term=1)
    assert living_with(bad.job) == []
    assert (await cluster.observe(bad.job)).attempts == []
    assert (await cluster.observe(good.job)).learners == [before]
    await cluster.teardown(good.job, attempt=1, term=1)
