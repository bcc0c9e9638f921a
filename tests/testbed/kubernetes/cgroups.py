"""The control groups of a machine of the test cluster: a group of its own in every hierarchy, removed with it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.testbed.kubernetes.processes import wait

PREFIX: Final = "weft-testbed-"


@dataclass(frozen=True)
class Hierarchy:
    path: str
    """Its mount point."""
    type: str
    """``cgroup`` (version 1) or ``cgroup2``."""
    options: str
    """Those with which version 1 is mounted: its controllers, or its name."""

    @property
    def entry(self) -> str:
        """Inside a machine: the file by which a process joins the machine's own group."""
        return f"{self.path}/init/cgroup.procs" if self.type == "cgroup2" else f"{self.path}/cgroup.procs"


def hierarchies() -> list[Hierarchy]:
    """Returns those of this machine: all of version 1, or that of version 2."""
    mounted: list[Hierarchy] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split()
        if kind in {"cgroup", "cgroup2"}:
            kept = [option for option in options.split(",") if option not in {"rw", "ro", "xattr"}]
            if any(option.startswith("name=") for option in kept):
                kept.insert(0, "none")
            mounted.append(Hierarchy(mount.split()[4], kind, ",".join(kept)))
    first = [hierarchy for hierarchy in mounted if hierarchy.type == "cgroup"]
    return first or mounted  # mixed: what version 2 is mounted for there, the test cluster does not need


def make_groups(name: str) -> list[Path]:
    """Makes the groups; returns the files by which a process joins them."""
    files: list[Path] = []
    for hierarchy in hierarchies():
        group = Path(hierarchy.path, PREFIX + name)
        group.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):  # version 1: empty at first, and then nothing may join
            if hierarchy.type == "cgroup" and (group / setting).exists():
                (group / setting).write_text(Path(hierarchy.path, setting).read_text())
        files.append(group / "cgroup.procs")
    return files


def set_share(name: str, percent: int) -> None:
    """Sets how much the groups get of processors that others want, too, in relation to a group of its own.

    RuntimeError where this machine does not divide its processors by groups.
    """
    divided = False
    for hierarchy in hierarchies():
        group = Path(hierarchy.path, PREFIX + name)
        for setting, whole in (("cpu.shares", 1024), ("cpu.weight", 100)):  # of version 1, and of version 2
            if (group / setting).exists():
                (group / setting).write_text(str(max(2, whole * percent // 100)))
                divided = True
    if not divided:
        raise RuntimeError("control groups divide no processors here: their controller `cpu` is not turned on")


def join_groups(name: str, pid: int) -> None:
    """Puts a process, and what it starts later, into the groups of a machine that runs."""
    for hierarchy in hierarchies():
        group = Path(hierarchy.path, PREFIX + name)
        entry = "init/cgroup.procs" if hierarchy.type == "cgroup2" else "cgroup.procs"
        (group / entry).write_text(str(pid))


def remove_groups(name: str) -> None:
    """Removes the groups with all below them; waits for their processes, which have been killed, to be gone."""
    for hierarchy in hierarchies():
        group = Path(hierarchy.path, PREFIX + name)
        wait(partial(_removed, group), f"the processes in {group} end")


def left_groups() -> Sequence[str]:
    """Names of the groups that exist."""
    names = {path.name for hierarchy in hierarchies() for path in Path(hierarchy.path).glob(f"{PREFIX}*")}
    return sorted(name.removeprefix(PREFIX) for name in names)


def _removed(group: Path) -> bool:
    folders = sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True) if group.exists() else []
    with suppress(OSError):  # busy: a process has not quite ended
        for folder in [*folders, group]:
            with suppress(FileNotFoundError):
                folder.rmdir()
    return not group.exists()
