"""Control groups of learners: memory and processes are bounded, CPUs shared as asked, and the end is sure.

Both versions: v1's controllers each have a tree, v2 has one. Groups are made below the agent's own, whose limits hold
for learners, too; v2 allows no groups below one that has processes, hence there beside it, below its parent. Where none
can be made, memory and CPUs are what the scheduler counts and no more.

CPUs are shares, not a quota: idle cores may be used by whoever runs, and in a crowd each gets its part. Never
RLIMIT_AS: what a program maps is not what it uses.
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

from services.node.files import read_json, write_json
from services.node.learner import LearnerDocument

_V1: Final = ("memory", "pids", "cpu", "freezer")
_V2: Final = ("memory", "pids", "cpu")
_REMOVE_S: Final = 2.0
"""A group is busy for a moment after its last process has ended."""
_SHARES: Final = 1024
_WEIGHT: Final = 100
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Mounted:
    """One tree of control groups, and where in it we are."""

    controllers: frozenset[str]
    """Empty: v2."""
    own: Path
    top: Path


def mounted(mountinfo: str, memberships: str) -> list[Mounted]:
    """From /proc/self/mountinfo and /proc/self/cgroup: pure."""
    ours = {names: path for _, names, path in (line.split(":", 2) for line in memberships.splitlines())}
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in {"cgroup", "cgroup2"}:
            continue
        root, top = before.split(" ")[3:5]
        has = set(options.split(",")) if kind == "cgroup" else set()
        for name, path in ours.items():
            controllers = set(filter(None, name.split(",")))
            if (kind == "cgroup2") != (not controllers) or not controllers <= has:
                continue
            own = Path(top, (path if root == "/" else path.removeprefix(root)).lstrip("/"))
            found.append(Mounted(frozenset(controllers), own, Path(top)))
    return found


class Groups:
    """The groups of one WEFT_HOME. Made by ``find``; without bases, everything here does nothing."""

    def __init__(self, bases: Mapping[str, Path], *, version: int, note: Path, pids: int) -> None:
        self._bases = dict(bases)
        """Controller -> the folder that holds its groups; v2: "" -> the one."""
        self._version = version
        self._note = note
        self._pids = pids

    @classmethod
    def find(cls, folder: Path, *, pids: int, wanted: bool = True) -> tuple[Groups, str]:
        """What can be made here, and why not what cannot. ``folder``: the agent's own, where it notes the places."""
        name = f"weft-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:10]}"
        note = folder / "groups.json"
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
        groups = cls(bases, version=version, note=note, pids=pids)
        groups._remember()
        return groups, "" if bases else f"memory, CPUs and processes are counted, not enforced: control groups: {why}"

    def _remember(self) -> None:
        """Where groups were made: an agent started from elsewhere is in another group itself."""
        known = {*self._places(), *map(str, self._bases.values())}
        if known != set(self._places()):
            write_json(self._note, {"places": sorted(known)})

    def _places(self) -> list[str]:
        return list((read_json(self._note) or {}).get("places", []))

    @property
    def enforced(self) -> list[str]:
        """What of it the kernel sees to."""
        return [name for name in ("memory", "pids", "cpu") if name in self._bases or "" in self._bases]

    def paths(self, document: LearnerDocument) -> tuple[str, ...]:
        """Those of one learner, made or not."""
        name = group_name(document.plan.job, str(document.plan.attempt), document.learner.name)
        return tuple(str(base / name) for base in self._bases.values())

    def make(self, document: LearnerDocument) -> None:
        """Again is harmless. What cannot be made is said and done without: the learner counts, as without groups."""
        for path in map(Path, document.groups):
            try:
                path.mkdir(exist_ok=True)
                self._limit(path, document)
            except OSError as error:
                log.warning("group.not_made", group=str(path), why=str(error))

    def _limit(self, path: Path, document: LearnerDocument) -> None:
        memory, cpus = document.learner.memory, document.learner.cpus
        limits = {"pids.max": self._pids}
        if self._version == 2:
            limits["cpu.weight"] = min(10_000, max(1, round(_WEIGHT * cpus)))
            if memory:
                limits |= {"memory.max": memory, "memory.swap.max": 0, "memory.oom.group": 1}
        else:
            limits["cpu.shares"] = max(2, round(_SHARES * cpus))
            if memory:  # the second includes swap, and cannot be less than the first
                limits |= {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}
        for name, value in limits.items():
            if (path / name).exists():
                (path / name).write_text(str(value))

    def sweep(self, learners: Iterable[Path]) -> None:
        """Ends and removes whatever is in groups of ours that no learner's folder stands for, wherever we made them."""
        kept = {group_name(*folder.parts[-3:]) for folder in learners}
        left = {str(place) for place in self._places() if not _swept(Path(place), kept, self._bases.values())}
        if left != set(self._places()):
            write_json(self._note, {"places": sorted(left)})

    @classmethod
    def leave(cls, folder: Path) -> None:
        """Removes all of them: no agent runs, and no learner. ``folder`` as for ``find``."""
        cls({}, version=1, note=folder / "groups.json", pids=0).sweep([])


def group_name(job: str, attempt: str, learner: str) -> str:
    """As its folder, without slashes."""
    return f"{job}.{attempt}.{learner}"


def _swept(place: Path, kept: Collection[str], used: Collection[Path]) -> bool:
    """Whether the place itself is gone."""
    if place.is_dir():
        remove(str(path) for path in place.iterdir() if path.is_dir() and path.name not in kept)
        if place not in used:
            with suppress(OSError):
                place.rmdir()
    return not place.is_dir()


def base_v2(tree: Mounted, name: str) -> tuple[Path | None, str]:
    """The folder for learners' groups, with controllers let through to them; or None and why."""
    above = tree.own if tree.own == tree.top else tree.own.parent
    base = above / name
    try:
        have = set((above / "cgroup.controllers").read_text().split())
        if "memory" not in have:
            return None, "cgroup v2 has no memory controller here"
        on = " ".join(f"+{one}" for one in _V2 if one in have)
        (above / "cgroup.subtree_control").write_text(on)
        base.mkdir(exist_ok=True)
        (base / "cgroup.subtree_control").write_text(on)
    except OSError as error:
        with suppress(OSError):
            base.rmdir()
        return None, f"{above}: {error.strerror}"
    return base, ""


def members(groups: Iterable[str]) -> set[int]:
    """Who is in any of them."""
    found: set[int] = set()
    for group in groups:
        with suppress(OSError):
            found.update(map(int, Path(group, "cgroup.procs").read_text().split()))
    return found


def remove(groups: Iterable[str]) -> None:
    """Ends whoever is still in them. What stays busy is left to the next ``sweep``."""
    for group in groups:
        deadline = time.monotonic() + _REMOVE_S
        while Path(group).is_dir():
            for pid in members([group]):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                Path(group).rmdir()
            except FileNotFoundError:
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    log.warning("group.stays", group=group, why=str(error))
                    break
                time.sleep(0.005)
