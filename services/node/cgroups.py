"""Control groups of learners: they bound memory and processes, weight CPUs, and kill all processes of a learner.

Both versions: in v1 each controller has a tree, v2 has one. Groups are made below the agent's own, whose limits then
hold for learners, too. v2 allows no groups below one that has processes: there they are beside it, below its parent.
Where none can be made, memory and CPUs are only counted by the scheduler, and processes are limited per user by
RLIMIT_NPROC (``shim.restrict``).

CPUs are weights, not a quota: learners may use idle cores, and get their parts when all are busy. RLIMIT_AS is not
used, because programs map more than they use.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from services.core.domain.codec import MALFORMED
from services.core.domain.errors import NoSpace
from services.core.runtime.durable_files import read_json, write_json
from services.core.runtime.home import GROUPS_FILE
from services.core.runtime.learner_folder import LearnerDocument

_V1: Final = ("memory", "pids", "cpu", "freezer")
_V2: Final = ("memory", "pids", "cpu")
_FREEZERS: Final = {"freezer.state": ("THAWED", "FROZEN"), "cgroup.freeze": ("0", "1")}
"""File of a group -> (word that lets its processes run, word that stops them), in v1 and v2."""
_REMOVE_S: Final = 2.0
"""A group is busy for a moment after its last process has ended."""
_SHARES: Final = 1024
"""Of one CPU, in v1."""
_WEIGHT: Final = 100
"""Of one CPU, in v2."""
_PROCESS_LIMITS: Final = (Path("/proc/sys/kernel/pid_max"), Path("/proc/sys/kernel/threads-max"))
_OF_LEARNERS: Final = 0.75
"""The part of all processes and threads of the machine that learners and helpers may have together."""
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Mounted:
    """One tree of control groups, and this process's place in it."""

    controllers: frozenset[str]
    """Empty: v2."""
    own: Path
    top: Path


def mounted(mountinfo: str, memberships: str) -> list[Mounted]:
    """All trees, from /proc/self/mountinfo and /proc/self/cgroup: pure."""
    own_groups = {names: path for _, names, path in (line.split(":", 2) for line in memberships.splitlines())}
    trees = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in {"cgroup", "cgroup2"}:
            continue
        root, top = before.split(" ")[3:5]
        has = set(options.split(",")) if kind == "cgroup" else set()
        for name, path in own_groups.items():
            controllers = set(filter(None, name.split(",")))
            if (kind == "cgroup2") != (not controllers) or not controllers <= has:
                continue
            own = Path(top, (path if root == "/" else path.removeprefix(root)).lstrip("/"))
            trees.append(Mounted(frozenset(controllers), own, Path(top)))
    return trees


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the processes in one group."""

    memory: int
    """Bytes; 0: not limited."""
    cpus: float
    """Weight beside others, in cores."""
    pids: int


NO_LIMITS: Final = Limits(0, 1, 2**22)


class Groups:
    """The groups of one WEFT_HOME. Created by ``find``; without bases all methods do nothing.

    ``places_file`` lists the folders in which groups were made, ``pids`` is the limit of processes per learner.
    """

    def __init__(
        self, bases: Mapping[str, Path], *, version: int, places_file: Path, pids: int, of_helpers: Limits = NO_LIMITS
    ) -> None:
        self._bases = dict(bases)
        """Controller -> the folder of its groups; v2: "" -> the only folder."""
        self._version = version
        self._places_file = places_file
        self._pids = pids
        self._of_helpers = of_helpers

    @classmethod
    def find(
        cls, folder: Path, *, pids: int, wanted: bool = True, of_helpers: Limits = NO_LIMITS
    ) -> tuple[Groups, str]:
        """The groups that can be made, and why others cannot. ``folder``: the agent's own.

        ``wanted`` is False: none are made.
        """
        name = f"weft-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:10]}"
        trees = mounted(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
        bases: dict[str, Path] = {}
        why = "there are none" if wanted else "not wanted (WEFT_NODE_CGROUPS)"
        for tree in trees if wanted else ():
            for controller in tree.controllers.intersection(_V1):
                try:
                    (tree.own / name).mkdir(exist_ok=True)
                    bases[controller] = tree.own / name
                except OSError as error:
                    why = f"{tree.own}: {error.strerror}"
        version = 1
        if wanted and "memory" not in bases:
            version = 2
            bases = {}
            for tree in trees:
                if not tree.controllers:
                    base, why = base_v2(tree, name)
                    bases = {"": base} if base else {}
        groups = cls(bases, version=version, places_file=folder / GROUPS_FILE, pids=pids, of_helpers=of_helpers)
        groups._save_places()
        groups._leave_processes()
        return groups, "" if bases else f"memory and CPUs are counted, not enforced: control groups: {why}"

    def _leave_processes(self) -> None:
        """Bounds the processes of all learners together, so that the platform can always start its own.

        A few learners with ``pids`` each would take all process ids of a machine that has 32,768.
        """
        for base in self._bases.values():
            limit = base / "pids.max"
            if limit.exists():
                with suppress(OSError, ValueError):
                    limit.write_text(str(int(_OF_LEARNERS * _most_processes(base.parent))))

    def _save_places(self) -> None:
        """An agent that is started from another session is in another group, and makes groups in other places."""
        known = {*self._places(), *map(str, self._bases.values())}
        if known != set(self._places()):
            self._write_places(known)

    def _write_places(self, places: Collection[str]) -> None:
        try:
            write_json(self._places_file, {"places": sorted(places)})
        except NoSpace as error:  # groups in places that are not written stay after a restart elsewhere
            log.warning("groups.not_recorded", why=str(error))

    def _places(self) -> list[str]:
        try:
            return [str(place) for place in (read_json(self._places_file) or {}).get("places", [])]
        except MALFORMED as error:
            log.warning("groups.places_unreadable", why=str(error))
            return []

    @property
    def enforced(self) -> list[str]:
        """The limits that the kernel enforces, out of memory, pids and cpu."""
        return [name for name in ("memory", "pids", "cpu") if name in self._bases or "" in self._bases]

    def paths(self, document: LearnerDocument) -> tuple[str, ...]:
        """The folders of one learner's groups, whether they exist or not."""
        return self.places(group_name(document.plan.job, str(document.plan.attempt), document.learner.name))

    def places(self, name: str) -> tuple[str, ...]:
        """The folders of the groups of this name, one for each controller."""
        return tuple(str(base / name) for base in self._bases.values())

    def make(self, document: LearnerDocument) -> None:
        """Makes the learner's and its helper's groups; may be repeated.

        Logs a group that cannot be made: its limit is not enforced.
        """
        own = Limits(document.learner.memory, document.learner.cpus, self._pids)
        for path in document.groups:
            for place, limits in ((path, own), (helper_group(path), self._of_helpers)):
                try:
                    Path(place).mkdir(exist_ok=True)
                    self._limit(Path(place), limits)
                except OSError as error:
                    log.warning("group.not_made", group=place, why=str(error))

    def _limit(self, path: Path, own: Limits) -> None:
        memory, cpus = own.memory, own.cpus
        limits = {"pids.max": own.pids}
        if self._version == 2:
            limits["cpu.weight"] = min(10_000, max(1, round(_WEIGHT * cpus)))
            if memory:
                limits |= {"memory.max": memory, "memory.swap.max": 0, "memory.oom.group": 1}
        else:
            limits["cpu.shares"] = max(2, round(_SHARES * cpus))
            if memory:  # the second includes swap, and may not be less than the first
                limits |= {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}
        for name, value in limits.items():
            if (path / name).exists():
                (path / name).write_text(str(value))

    def sweep(self, learners: Iterable[Path]) -> None:
        """Kills the processes in groups without a learner's folder, and removes the groups, in all places."""
        names = {group_name(*folder.parts[-3:]) for folder in learners}
        kept = names | {helper_group(name) for name in names}
        left = {str(place) for place in self._places() if not _swept(Path(place), kept, self._bases.values())}
        if left != set(self._places()):
            self._write_places(left)

    @classmethod
    def remove_all(cls, folder: Path) -> None:
        """Removes all groups, when no learner runs, and none is started. ``folder`` as for ``find``."""
        groups = cls({}, version=1, places_file=folder / GROUPS_FILE, pids=0)
        groups.sweep([])
        if not groups._places():
            groups._places_file.unlink(missing_ok=True)


def group_name(job: str, attempt: str, learner: str) -> str:
    """The path of the learner's folder below the agent's, with dots instead of slashes."""
    return f"{job}.{attempt}.{learner}"


def helper_group(group: str) -> str:
    """The group of the helper, and of what it builds, beside that of its learner."""
    return f"{group}.helper"


def groups_of(documents: Iterable[LearnerDocument]) -> list[str]:
    """The groups of learners and of their helpers."""
    own = [path for document in documents for path in document.groups]
    return [*own, *map(helper_group, own)]


def enter(groups: Iterable[str], pid: int) -> None:
    """Moves a process that was just started into the groups. Logs a group that it cannot enter."""
    for group in groups:
        try:
            Path(group, "cgroup.procs").write_text(str(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it was never made, which was logged; or the process has ended
        except OSError as error:
            log.warning("group.not_entered", group=group, pid=pid, why=str(error))


def _swept(place: Path, kept: Collection[str], used: Collection[Path]) -> bool:
    """True if the place itself is gone."""
    if place.is_dir():
        remove(str(path) for path in place.iterdir() if path.is_dir() and path.name not in kept)
        if place not in used:
            with suppress(OSError):
                place.rmdir()
    return not place.is_dir()


def _most_processes(group: Path) -> int:
    """How many processes and threads there may be in the group. Raises OSError, ValueError."""
    texts = [path.read_text().strip() for path in (*_PROCESS_LIMITS, group / "pids.max") if path.exists()]
    return min(int(text) for text in texts if text != "max")


def base_v2(tree: Mounted, name: str) -> tuple[Path | None, str]:
    """The folder for learners' groups, with the controllers enabled for them; or None and the reason."""
    above = tree.own if tree.own == tree.top else tree.own.parent
    base = above / name
    try:
        have = set((above / "cgroup.controllers").read_text().split())
        if "memory" not in have:
            return None, "cgroup v2 has no memory controller here"
        enable = " ".join(f"+{controller}" for controller in _V2 if controller in have)
        (above / "cgroup.subtree_control").write_text(enable)
        base.mkdir(exist_ok=True)
        (base / "cgroup.subtree_control").write_text(enable)
    except OSError as error:
        with suppress(OSError):
            base.rmdir()
        return None, f"{above}: {error.strerror}"
    return base, ""


def members(groups: Iterable[str]) -> set[int]:
    """The pids of all processes in these groups."""
    pids: set[int] = set()
    for group in groups:
        with suppress(OSError):
            pids.update(map(int, Path(group, "cgroup.procs").read_text().split()))
    return pids


def set_frozen(groups: Iterable[str], *, frozen: bool) -> bool:
    """Stops the processes of these groups, or lets them run again. False if none of the groups has a freezer.

    In groups of version 1 a frozen process does not end by SIGKILL. A shim that is killed while it ends its learner
    leaves it frozen, and so does an agent that is killed while it counts files.
    """
    written = [_write(f"{group}/{name}", words[frozen]) for group in groups for name, words in _FREEZERS.items()]
    return any(written)


def _write(path: str, word: str) -> bool:
    """False if the group has no such file, or is gone."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, word.encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def remove(groups: Iterable[str]) -> None:
    """Kills all processes in the groups and removes them. A group that stays busy is left to the next ``sweep``."""
    for group in groups:
        deadline = time.monotonic() + _REMOVE_S
        while Path(group).is_dir():
            for pid in members([group]):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            set_frozen([group], frozen=False)
            try:
                Path(group).rmdir()
            except FileNotFoundError:
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    log.warning("group.not_removed", group=group, why=str(error))
                    break
                time.sleep(0.005)
