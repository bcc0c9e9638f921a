"""Finds what a user id has left on this machine: processes, files in folders that all users may write, System V memory.

A uid with traces is not given to another tenant: a file or process of the old tenant would have the new one's rights,
and the reverse. Other folders that all users may write are the operator's responsibility; a usual system has none.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from services.core.runtime.processes import ENDED, stat_fields
from services.core.runtime.tree_removal import remove_below

SHARED_FOLDERS: Final = ("/tmp", "/var/tmp", "/dev/shm", "/run/lock", "/dev/mqueue")  # noqa: S108 - looked through
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_ENTRIES: Final = 1_000_000
_MAX_DEPTH: Final = 16
_IPC: Final = ("shm", "msg", "sem")
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Places:
    """Where it is looked for traces; other places are for tests."""

    folders: Sequence[str] = SHARED_FOLDERS
    proc: Path = Path("/proc")
    max_entries: int = _MAX_ENTRIES
    """Of each folder: so a folder that is full of others' files hides none in another folder."""


def trace_of(uid: int, places: Places | None = None) -> str:
    """The first trace of the user, for people; empty: there is none. Also a trace: more than can be looked through."""
    where = places or Places()
    for name, owner in _processes(where):
        if owner == uid:
            return f"process {name}"
    for kind in _IPC:
        if uid in _ipc_owners(where.proc / "sysvipc" / kind):
            return f"System V {kind}"
    return next((path for path in files_of(uid, where)), "")


def traced(uids: range, places: Places | None = None) -> set[int]:
    """Those of the users that have left something, in one pass. What there is too much to look through is no trace."""
    where = places or Places()
    owners = {owner for _, owner in _processes(where)}
    for kind in _IPC:
        owners |= _ipc_owners(where.proc / "sysvipc" / kind)
    mounts = mount_points(where.proc)
    for top in where.folders:
        budget = iter(range(where.max_entries))
        for folder, name, _ in _entries_of(top, _Walk(uids, mounts, budget)):
            with suppress(OSError):  # it was removed meanwhile
                owners.add(os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid)
    return {owner for owner in owners if owner in uids}


def _processes(where: Places) -> Iterator[tuple[str, int]]:
    """(name in /proc, user) of living processes.

    A process that has ended has no rights, and stays in /proc until its parent waits for it. The first process of a
    container may never do so.
    """
    for entry in where.proc.iterdir():
        with suppress(OSError):  # it has ended meanwhile
            if entry.name.isdecimal() and stat_fields(entry.name, where.proc)[0] not in ENDED:
                yield entry.name, entry.stat().st_uid


def files_of(uid: int, places: Places | None = None) -> Iterator[str]:
    """Paths of the user's files, outermost only; "FOLDER/..." for a folder with too much to look through."""
    where = places or Places()
    mounts = mount_points(where.proc)
    for top in where.folders:
        budget = iter(range(where.max_entries))
        for _, _, path in _entries_of(top, _Walk(range(uid, uid + 1), mounts, budget)):
            yield path
        if next(budget, None) is None:
            yield f"{top}/..."


def sweep(uid: int, places: Places | None = None) -> None:
    """Removes the user's files from the shared folders. Raises OSError for one that cannot be removed.

    Each is removed below the folder that was looked through, never by its path: folders in between may belong to
    others, who can put a link in their place.
    """
    where = places or Places()
    mounts = mount_points(where.proc)
    for top in where.folders:
        is_complete = False
        while not is_complete:
            budget, removed = iter(range(where.max_entries)), False
            for folder, name, _ in _entries_of(top, _Walk(range(uid, uid + 1), mounts, budget)):
                remove_below(folder, name)
                removed = True
            is_complete = next(budget, None) is not None or not removed


def _entries_of(top: str, walk: _Walk) -> Iterator[tuple[int, str, str]]:
    """(descriptor of the folder, name, path) of the user's files; the descriptor is good until the next."""
    with suppress(OSError):
        yield from walk.below(os.open(top, _FOLDER), os.path.realpath(top))


@dataclass(frozen=True, slots=True)
class _Walk:
    """Passes over other users' folders that others may not enter: the users cannot have written there."""

    uids: range
    mounts: frozenset[str]
    budget: Iterator[int]

    def below(self, fd: int, path: str, depth: int = 0) -> Iterator[tuple[int, str, str]]:
        """Takes over the descriptor. The depth is bounded, so is the recursion."""
        try:
            with os.scandir(fd) as entries:
                for entry, _ in zip(entries, self.budget, strict=False):
                    inner = f"{path}/{entry.name}"
                    if inner in self.mounts:
                        continue
                    with suppress(OSError):
                        status = os.stat(entry.name, dir_fd=fd, follow_symlinks=False)
                        if status.st_uid in self.uids:
                            yield fd, entry.name, inner
                        elif _others_may_enter(status) and depth < _MAX_DEPTH:
                            yield from self.below(os.open(entry.name, _FOLDER, dir_fd=fd), inner, depth + 1)
        finally:
            os.close(fd)


def _others_may_enter(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_IXOTH)


def mount_points(proc: Path = Path("/proc")) -> frozenset[str]:
    """Paths of all mounts. Walks do not look into them: one may never answer."""
    try:
        lines = (proc / "self/mountinfo").read_bytes().splitlines()
    except OSError:
        return frozenset()
    points = (_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), line.split(b" ")[4]) for line in lines)
    return frozenset(map(os.fsdecode, points))


def _ipc_owners(path: Path) -> set[int]:
    """The uids in one table of /proc/sysvipc, whose first line names the columns."""
    try:
        header, *rows = path.read_text().splitlines()
    except (OSError, ValueError):
        return set()
    columns = [header.split().index(name) for name in ("uid", "cuid")]
    return {int(row.split()[column]) for row in islice(rows, _MAX_ENTRIES) for column in columns}
