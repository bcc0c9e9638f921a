"""A learner's folder that resists its removal: the job ends, its hardware is given back, and the operator sees it."""

from __future__ import annotations

import ctypes
import itertools
import os
import shlex
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import grpc.aio
import pytest

from services.core.adapters.local.cluster import LocalCluster
from services.core.adapters.rpc.operations import ask_quarantine
from services.core.domain.errors import ResourceExhausted
from services.core.runtime.quarantine import FOLDER, QuarantineEntry
from tests.testbed.gangs import await_exit, start, teardown
from tests.testbed.node import NodeProcess, node_process, plan
from tests.waiting import HANG_S, until

LIBC = ctypes.CDLL(None, use_errno=True)
_UIDS_FIRST = 300_000
"""Above those of pods. Each agent has one of its own: nobody else has its files, not even an earlier test."""
_agents = itertools.count()
DETACH = 2


@pytest.fixture
def node() -> Generator[NodeProcess]:
    own_uid = {
        "WEFT_NODE_UID_COUNT": "1",
        "WEFT_NODE_UID_FIRST": str(_UIDS_FIRST + 10 * os.getpid() + next(_agents)),
    }
    with node_process(own_uid) as running:
        yield running


async def quarantined(channel: grpc.aio.Channel, count: int) -> list[QuarantineEntry]:
    """The folders in quarantine, once there are ``count``."""

    entries: list[QuarantineEntry] = []

    async def reached() -> bool:
        entries[:] = [entry for entry in await ask_quarantine(channel, timeout_s=HANG_S) if entry.kind == FOLDER]
        return len(entries) == count

    await until(reached)
    return entries


@contextmanager
def unanswered_mount(place: Path) -> Generator[None]:
    """A FUSE file system without a server: each access to it waits for ever. Needs root."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    assert LIBC.mount(b"weft-test", bytes(place), b"fuse", 0, options) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        os.close(device)


def unmount(name: str) -> None:
    """Takes away all mounts whose path contains the name."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split(" ")[4]
        if name in point:
            LIBC.umount2(point.encode(), DETACH)


def as_root() -> bool:
    """Only root can mount. Without root the same folder resists by files of another user, which needs root as well."""
    return os.geteuid() == 0


async def test_a_mount_that_never_answers_holds_no_hardware_and_no_agent(
    node: NodeProcess, cluster: LocalCluster, channel: grpc.aio.Channel
) -> None:
    if not as_root():
        return
    gang = plan(["exec true"], gpus=4, tenant="blue")
    await start(cluster, gang)
    await await_exit(cluster, gang)
    place = node.folder(gang) / "job/results/hangs"
    place.mkdir()
    try:
        with unanswered_mount(place):
            await teardown(cluster, gang)
            (entry,) = await quarantined(channel, 1)
            assert (entry.job, entry.reason) == (gang.job, "hangs: Device or resource busy")
            assert "unmount what is mounted" in entry.advice
            assert not (node.home / "node" / gang.job).exists()
            node.end()
            node.start()  # an agent starts beside it
            other = plan(["exec true"], gpus=4, tenant="blue")
            await start(cluster, other)
            await await_exit(cluster, other)
            await teardown(cluster, other)
            assert len(await quarantined(channel, 1)) == 1
    finally:
        unmount(gang.job)
    node.end()
    node.start()
    assert await quarantined(channel, 0) == []
    await until(lambda: not list((node.home / "node/.quarantine").iterdir()))  # it looks there after its start


async def test_a_user_with_a_folder_in_quarantine_is_not_given_to_another_tenant(
    node: NodeProcess, cluster: LocalCluster, channel: grpc.aio.Channel
) -> None:
    if not as_root():
        return
    gang = plan(["exec true"], tenant="blue")
    await start(cluster, gang)
    await await_exit(cluster, gang)
    place = node.folder(gang) / "job/results/mounted"
    place.mkdir()
    assert LIBC.mount(b"tmpfs", bytes(place), b"tmpfs", 0, None) == 0
    try:
        await teardown(cluster, gang)
        await quarantined(channel, 1)
        with pytest.raises(ResourceExhausted, match="another tenant left"):
            await cluster.do("reserve", plan(["true"], tenant="red"))
        await cluster.do("reserve", again := plan(["true"], tenant="blue"))
        await teardown(cluster, again)
    finally:
        unmount(gang.job)
    node.end()
    node.start()
    await quarantined(channel, 0)

    async def is_free() -> bool:
        try:
            await cluster.do("reserve", plan(["true"], tenant="red"))
        except ResourceExhausted:
            return False
        return True

    await until(is_free)  # the agent looks through its folder after its start


async def test_a_learner_that_builds_thousands_of_nested_folders_is_removed(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    nest = "import os\nfor _ in range(3000): os.mkdir('d' * 20); os.chdir('d' * 20)\nopen(b'\\xff\\xfe', 'w')"
    gang = plan([f"exec python3 -c {shlex.quote(nest)}"])
    await start(cluster, gang)
    assert (await await_exit(cluster, gang)).code == 0
    await teardown(cluster, gang)
    assert not (node.home / "node" / gang.job).exists()


async def test_an_agent_starts_whatever_lies_in_its_folder(node: NodeProcess, channel: grpc.aio.Channel) -> None:
    root = node.home / "node"
    node.end()
    (root / "a-file").touch()
    (root / "a-link").symlink_to("/")
    (root / "a-loop").symlink_to("a-loop")
    (root / os.fsdecode(b"\xff\xfe")).mkdir()
    (root / "UPPER").mkdir()
    (root / "j1/1").mkdir(parents=True)
    (root / "j1/1/worker-0").touch()
    (root / "j1/1/\u0663").mkdir()
    (root / "j1/\u0663").mkdir()
    (root / "j1/.gone-7").symlink_to("/")
    (root / "j2").mkdir()
    (root / "j2/3").symlink_to("/")
    (root / ".agent/groups.json").write_text("{")
    (root / ".agent/fences/j1.json").write_text("[[")
    (root / ".quarantine").mkdir(exist_ok=True)
    (root / ".quarantine/strange.name").mkdir()
    node.start()
    places = {Path(entry.place).name for entry in await quarantined(channel, 5)}
    assert {"a-file", "a-link", "a-loop", "UPPER"} <= places
    assert Path("/usr").is_dir()  # no link was followed
