"""Measures what a learner uses of its machine: CPU time, memory and GPUs.

On one machine the learner's control groups are read where there are some, else its processes: those below the shim. In
a pod the entry process of the learner's container measures its own control group, into ``usage.json``. Nothing here can
fail the learner: a value that cannot be read is left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from services.core.domain.codec import MALFORMED
from services.core.runtime.learner_folder import RUN, RUNS_FOLDER, LearnerFolder
from services.core.runtime.processes import stat_fields

PROC: Final = Path("/proc")
USAGE_FILE: Final = f"{RUNS_FOLDER}/{RUN}/usage.json"
"""Of a container's entry process: {clock_cs, cpu_us, memory}."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_DROPPED: Final = {
    "memory.current": ("memory.stat", "inactive_file"),
    "memory.usage_in_bytes": ("memory.stat", "total_inactive_file"),
}
"""File of a group's memory, v2 and v1 -> where it says how much of it are pages that the kernel drops first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a learner uses. None: not known."""

    clock_s: float
    """When it was measured, on a clock of the reader that never goes back."""
    cpu_s: float | None = None
    """Seconds of CPU time since its start."""
    memory: int | None = None
    """Bytes."""
    gpus: float | None = None
    """GPUs in use: the sum of their utilisation, 0 to 1 each."""
    gpu_memory: int | None = None
    """Bytes."""


class UsageReader(Protocol):
    """Reads what a learner uses now."""

    def read(self) -> Usage:
        """Takes some milliseconds at most. Never raises."""
        ...


@dataclass(frozen=True, slots=True)
class MachineUsage:
    """Of a learner whose processes run on this machine."""

    groups: Sequence[str]
    """Folders of its control groups."""
    parent: Callable[[], int | None]
    """Pid of the process of which all processes of the learner are descendants; None: it has none now."""
    gpus: Sequence[int] = ()
    """Indices of its GPUs."""
    proc: Path = PROC

    def read(self) -> Usage:
        gpus, gpu_memory = _gpu_usage(self.gpus)
        return replace(self._cpu_and_memory(), gpus=gpus, gpu_memory=gpu_memory)

    def _cpu_and_memory(self) -> Usage:
        cpu_s, memory = _group_cpu_s(self.groups), _group_memory(self.groups)
        if cpu_s is not None and memory is not None:
            return Usage(clock_s=time.monotonic(), cpu_s=cpu_s, memory=memory)
        processes = self._processes()
        if not processes:
            return Usage(clock_s=time.monotonic(), cpu_s=cpu_s, memory=memory)
        if cpu_s is None:
            cpu_s = sum(process.cpu_s for process in processes)
        if memory is None:
            # Shared pages are counted once: workers of a data loader share most of their memory.
            sizes = [_resident(self.proc, process.pid) for process in processes]
            memory = sum(own for own, _ in sizes) + max((shared for _, shared in sizes), default=0)
        return Usage(clock_s=time.monotonic(), cpu_s=cpu_s, memory=memory)

    def _processes(self) -> list[_Process]:
        pids = _group_pids(self.groups)
        if pids:
            return [process for pid in pids if (process := _process(self.proc, pid)) is not None]
        parent = self.parent()
        if parent is None:
            return []
        table = {
            int(name): process
            for name in os.listdir(self.proc)  # noqa: PTH208 - /proc is read a lot
            if name.isdecimal() and (process := _process(self.proc, int(name))) is not None
        }
        return _below(table, parent)


@dataclass(frozen=True, slots=True)
class PodUsage:
    """Of a learner in a container of its own, as its entry process has written it. Nothing there is trusted."""

    folder: LearnerFolder

    def read(self) -> Usage:
        try:
            document = self.folder.read(USAGE_FILE) or {}
        except MALFORMED:  # it is being written
            document = {}
        clock_cs, cpu_us, memory = (_natural(document.get(name)) for name in ("clock_cs", "cpu_us", "memory"))
        return Usage(clock_s=(clock_cs or 0) / 100, cpu_s=None if cpu_us is None else cpu_us / 1e6, memory=memory)


def _natural(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    cpu_s: float
    """With that of its children that have ended."""


def _process(proc: Path, pid: int) -> _Process | None:
    """None: it has ended."""
    try:
        fields = stat_fields(pid, proc)
        return _Process(pid, int(fields[1]), sum(map(int, fields[11:15])) / _TICKS)
    except (OSError, ValueError, IndexError):
        return None


def _below(table: Mapping[int, _Process], parent: int) -> list[_Process]:
    """The descendants of a process."""
    children: dict[int, list[_Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    descendants, front = [], [parent]
    while front:
        own = children.pop(front.pop(), [])
        descendants += own
        front += [process.pid for process in own]
    return descendants


def _resident(proc: Path, pid: int) -> tuple[int, int]:
    """Bytes of memory of its own, and of pages that it shares with files and other processes."""
    try:
        _, resident, shared, *_ = (proc / str(pid) / "statm").read_text().split()
    except (OSError, ValueError):
        return 0, 0
    return max(0, int(resident) - int(shared)) * _PAGE, int(shared) * _PAGE


def _gpu_usage(indices: Sequence[int]) -> tuple[float, int] | tuple[None, None]:
    """GPUs in use, and bytes of their memory. None where the driver does not know these GPUs (declared ones)."""
    if not indices:
        return None, None
    import pynvml  # noqa: PLC0415 - most learners have no GPU

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None, None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in indices]
        busy = sum(int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in handles)
        return busy / 100, sum(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)
    except pynvml.NVMLError:
        return None, None
    finally:
        pynvml.nvmlShutdown()


def _group_pids(groups: Iterable[str]) -> list[int]:
    for group in groups:
        with suppress(OSError, ValueError):
            pids = [int(text) for text in Path(group, "cgroup.procs").read_text().split()]
            if pids:
                return pids
    return []


def _group_memory(groups: Iterable[str]) -> int | None:
    for group in groups:
        for name, (statistics, dropped) in _DROPPED.items():
            with suppress(OSError, ValueError):
                used = int(Path(group, name).read_text())
                return max(0, used - _entry(Path(group, statistics), dropped))
    return None


def _group_cpu_s(groups: Iterable[str]) -> float | None:
    for group in groups:
        with suppress(OSError, ValueError, KeyError):
            return _entries(Path(group, "cpu.stat"))["usage_usec"] / 1e6
        with suppress(OSError, ValueError):
            return int(Path(group, "cpuacct.usage").read_text()) / 1e9
    return None


def _entry(path: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        return _entries(path).get(name, 0)
    return 0


def _entries(path: Path) -> dict[str, int]:
    """Names and numbers of a file such as cpu.stat."""
    return {name: int(value) for name, value in (line.split() for line in path.read_text().splitlines())}
