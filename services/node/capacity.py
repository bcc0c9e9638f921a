"""The capacity of this machine: as declared by the operator, else as detected.

The scheduler counts with these CPUs and this memory. The operator may declare more than there is (overcommit).
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pynvml

from services.core.ports.cluster import Node
from services.core.runtime.free_space import FreeSpace
from services.node.settings import NodeSettings

_CGROUP_V2 = Path("/sys/fs/cgroup")
_CGROUP_V1 = Path("/sys/fs/cgroup/memory")


def detect(settings: NodeSettings) -> Node:
    """This machine. Called once: an error of the driver later on must not take GPUs from placed learners."""
    gpus, gpu_type = nvidia_gpus() if settings.node_gpus is None else (settings.node_gpus, "")
    return Node(
        name=settings.node_name,
        cpus=settings.node_cpus or len(os.sched_getaffinity(0)),
        memory=settings.node_memory or usable_memory(),
        gpus=gpus,
        gpu_type=gpu_type,
    )


def free_space(settings: NodeSettings) -> FreeSpace:
    """The file systems of learners and of their caches."""
    folders = [("learners", settings.installation / "node"), ("their caches", settings.installation / "cache")]
    return FreeSpace(folders, settings.disk_free_bytes, settings.disk_free_percent)


def disk_reserve(settings: NodeSettings, folder: Path) -> int:
    """Bytes of the folder's file system that learners leave free, as configured or half of ``disk_free_bytes``."""
    if settings.node_disk_reserve is not None:
        return settings.node_disk_reserve
    disk = os.statvfs(folder)
    share = settings.disk_free_percent / 100
    return int(min(settings.disk_free_bytes, disk.f_blocks * disk.f_frsize * share) / 2)


def objects_keep_free(settings: NodeSettings, folder: Path) -> int:
    """Bytes that stored outputs leave free where the object store is this folder: half of the learners' reserve.

    The other half is for the outputs of learners that are ended when the reserve is touched. 0 without such a folder.
    """
    if settings.object_store != "folder" or not folder.exists():
        return 0
    total = shutil.disk_usage(folder).total
    return min(disk_reserve(settings, folder), int(total * settings.disk_free_percent / 100)) // 2


def data_keep_free(settings: NodeSettings) -> int:
    """Bytes that fetched data leaves free: more than the learners' reserve, at which running learners are ended."""
    folders = (settings.installation / "node", settings.installation / "cache")
    return min((disk_reserve(settings, folder) for folder in folders if folder.exists()), default=0) * 3 // 2


def usable_memory() -> int:
    """Bytes: the machine's memory, or the smallest limit of this process's control groups."""
    return min([total_memory(), *cgroup_limits()])


def total_memory() -> int:
    """``MemTotal`` of the machine, in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemTotal")


def cgroup_limits() -> list[int]:
    """Memory limits of this process's control groups and their parents, in bytes."""
    limits: list[int] = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = _CGROUP_V2, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _CGROUP_V1, "memory.limit_in_bytes"
        else:
            continue
        inner = root / path.lstrip("/")
        for folder in (inner, *inner.parents):
            with suppress(OSError, ValueError):  # missing, or the word "max"
                limits.append(int((folder / name).read_text()))
            if folder == root:
                break
    return limits


def gpu_minors() -> tuple[int, ...]:
    """Minor numbers of /dev/nvidia<minor> by GPU index, in the driver's order; () without driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(int(pynvml.nvmlDeviceGetCount()))]
        return tuple(int(pynvml.nvmlDeviceGetMinorNumber(handle)) for handle in handles)
    finally:
        pynvml.nvmlShutdown()


def nvidia_gpus() -> tuple[int, str]:
    """The number of GPUs that the driver shows, and the first one's name; (0, "") without driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0, ""
    try:
        count = int(pynvml.nvmlDeviceGetCount())
        return count, str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))) if count else ""
    finally:
        pynvml.nvmlShutdown()
