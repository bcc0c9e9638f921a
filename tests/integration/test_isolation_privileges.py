"""Rights that a learner does not have in any isolation: namespaces, privileged system calls, shared temporary files."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.adapters.local.cluster import LocalCluster
from services.core.domain.plan import Input
from tests.testbed.gangs import await_exit, start, teardown
from tests.testbed.isolations import VARIANTS, Variant
from tests.testbed.node import NodeProcess, living_with, output_of, plan
from tests.waiting import until

NUMBERS = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "userfaultfd": (323, 282),
    "mount": (165, 40),
    "unshare": (272, 97),
    "keyctl": (250, 219),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "clone": (56, 220),
    "clone3": (435, 435),
    "socket": (41, 198),
    "kcmp": (312, 272),
    "x32": (0x40000000 + 39, 5001),
    "newer": (5000, 5000),
}
"""Of x86_64 and aarch64."""
CALLS = f"""
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
def report(name, *arguments):
    number = {NUMBERS}[name][platform.machine() == "aarch64"]
    result = libc.syscall(number, *arguments)
    print(name, "done" if result >= 0 else errno.errorcode[ctypes.get_errno()])
report("unshare", 0x10000000)
report("clone", 0x10000000 | 17, 0, 0, 0, 0)
report("clone3", 0, 0)
for name in ("add_key", "bpf", "io_uring_setup", "userfaultfd", "mount", "keyctl", "open_by_handle_at",
             "perf_event_open", "kcmp"):
    report(name, 0, 0, 0, 0, 0)
report("socket", 40, 1, 0)
report("personality", 0x40000)
report("personality", 0xffffffff)
report("socket", 2, 1, 0)
report("x32")
report("newer")
"""
ANSWERS = [
    "unshare EPERM",
    "clone EPERM",
    "clone3 ENOSYS",
    "add_key EPERM",
    "bpf EPERM",
    "io_uring_setup EPERM",
    "userfaultfd EPERM",
    "mount EPERM",
    "keyctl EPERM",
    "open_by_handle_at EPERM",
    "perf_event_open EPERM",
    "kcmp EPERM",
    "socket EPERM",
    "personality EPERM",
    "personality done",
    "socket done",
    "x32 ENOSYS",
    "newer ENOSYS",
]
WORKS = """
import mmap, multiprocessing, os, shutil, socket, subprocess, tempfile, threading
from multiprocessing import shared_memory
with multiprocessing.Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
block = shared_memory.SharedMemory(create=True, size=2**16)
block.close(); block.unlink()
threading.Thread(target=print, args=("thread",)).start()
assert subprocess.run(["true"]).returncode == 0
with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
    shutil.copyfile("/bin/true", folder + "/copy")
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.memfd_create("x"); os.eventfd(0); mmap.mmap(-1, 4096)
print("works")
"""


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: variant.name)
def node(request: pytest.FixtureRequest) -> Generator[NodeProcess]:
    variant: Variant = request.param
    with variant.node() as running:
        yield running


async def test_system_calls_that_containers_refuse_are_refused(node: NodeProcess, cluster: LocalCluster) -> None:
    assert await output_of(node, cluster, f"exec python3 -c {shlex.quote(CALLS)}") == ANSWERS


async def test_what_training_needs_works_under_the_filter(node: NodeProcess, cluster: LocalCluster) -> None:
    assert await output_of(node, cluster, f"exec python3 -W error -c '{WORKS}'") == ["thread", "works"]


async def test_a_program_with_the_setuid_bit_gains_nothing(node: NodeProcess, cluster: LocalCluster) -> None:
    lines = await output_of(node, cluster, "grep -E '^(NoNewPrivs|Seccomp|CapEff|CapBnd):' /proc/self/status")
    fields = dict(line.split(":\t") for line in lines)
    assert (fields["NoNewPrivs"], fields["Seccomp"], int(fields["CapEff"], 16)) == ("1", "2", 0)


async def test_a_user_namespace_cannot_be_made(node: NodeProcess, cluster: LocalCluster) -> None:
    lines = await output_of(node, cluster, "unshare --user --map-root-user true && echo made")
    assert lines == ["unshare: unshare failed: Operation not permitted"]


async def test_tmp_and_dev_shm_of_a_learner_are_its_own_and_gone_afterwards(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    if node.isolation == "trusted":
        assert "platform's own user" in node.reported_isolation["why"]
        return
    left = "weft-left-behind"
    places = ["/tmp", "/var/tmp", "/dev/shm"]
    gang = plan([f"for place in {' '.join(places)}; do echo x > $place/{left}; done; ls $TMPDIR; exec sleep 1000"])
    await start(cluster, gang)
    await until(lambda: living_with(gang.job, program="sleep"))
    assert left in node.output(gang)
    assert not [place for place in places if Path(place, left).exists()]
    assert await output_of(node, cluster, f"ls {' '.join(f'{place}/{left}' for place in places)} 2>/dev/null") == []
    await teardown(cluster, gang)
    assert not [place for place in places if Path(place, left).exists()]


async def test_files_that_a_learner_leaves_in_other_shared_folders_are_gone_afterwards(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    if node.isolation == "trusted":
        return
    left = Path("/run/lock/weft-left-behind")
    gang = plan([f"echo x > {left}; mkdir {left}.d; echo done; exec sleep 1000"])
    await start(cluster, gang)
    await until(lambda: "done" in node.output(gang))
    await teardown(cluster, gang)
    assert not left.exists()
    assert not Path(f"{left}.d").exists()


async def test_a_link_that_another_rank_puts_among_the_data_of_a_learner_shows_nothing_of_the_machine(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    gang = replace(plan(["cat $STRANGER/x || echo hidden"]), inputs=(Input(mount="set", type="local", location="/x"),))
    with tempfile.TemporaryDirectory(prefix="weft-stranger-") as stranger:
        Path(stranger).chmod(0o755)
        Path(stranger, "x").write_text("seen\n")
        own = replace(gang.learners[0], env={"STRANGER": stranger})
        gang = replace(gang, learners=(own,))
        await cluster.do("reserve", gang)
        data = node.folder(gang) / "job/data"
        (data / "set").symlink_to(stranger)
        os.chown(data / "set", data.stat().st_uid, data.stat().st_gid, follow_symlinks=False)
        if data.stat().st_uid != node.folder(gang).stat().st_uid:  # else ranks cannot reach one another, or all is open
            await start(cluster, gang)
            await await_exit(cluster, gang)
            assert node.output(gang) == "hidden\n"
        await teardown(cluster, gang)


async def test_shared_memory_of_a_learner_is_invisible_to_others(node: NodeProcess, cluster: LocalCluster) -> None:
    if node.isolation == "trusted":
        return
    make = "import ctypes; print(ctypes.CDLL(None).shmget(0x7765, 4096, 0o1666) >= 0, flush=True)"
    gang = plan([f"python3 -c '{make}'; exec sleep 1000"])
    await start(cluster, gang)
    await until(lambda: node.output(gang) == "True\n")
    find = "import ctypes; print(ctypes.CDLL(None).shmget(0x7765, 0, 0))"
    assert await output_of(node, cluster, f"python3 -c '{find}'") == ["-1"]
    await teardown(cluster, gang)


FORKS = """
import os, time
started = 0
try:
    while started < 400:
        if os.fork() == 0:
            time.sleep(1000)
        started += 1
except BlockingIOError:
    print("refused after", started, flush=True)
time.sleep(1000)
"""


async def test_without_control_groups_the_number_of_processes_is_limited_by_user() -> None:
    for variant in VARIANTS:
        with variant.node({"WEFT_NODE_CGROUPS": "false", "WEFT_NODE_PIDS": "64"}) as node:
            cluster = await node.cluster()
            gang = plan([f"exec python3 -c '{FORKS}'"])
            await start(cluster, gang)
            # Without root the threads that the platform has ended since the start are in the number, too.
            refused = await until(lambda: node.output(gang))  # noqa: B023 - in this round only
            assert 32 <= int(refused.split()[-1]) <= 96, variant.name
            await teardown(cluster, gang)
            await cluster.close()
