"""How much a learner has written: a walk through its folder by descriptor, with a bounded share of time.

A file without a name takes space as long as a process has it open or mapped: ``add_unnamed`` counts those. One that is
only in a message between processes, which none has received, is not found. Processes may share a table of descriptors
or of mappings, and each shows all of it: what is looked at is bounded, and a learner that holds more exceeds its bound.

A project quota would be exact, but few file systems are mounted with one. So a learner can exceed its bound for
as long as a round of walks takes. Only the learner's own files count, each once, however many names it has. One
descriptor is open at a time, so the depth of its folders costs nothing; links and mounts are not entered. Without root
a learner has the agent's user, and may close its folders to it: the walk gives itself the right to read each.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.core.runtime.tree_removal import open_to_owner
from services.node.traces import mount_points

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK: Final = 512
"""Unit of st_blocks, in bytes."""
MAX_HELD: Final = 2**20
"""Descriptors, and mappings of deleted files, of all processes of one learner: 10 s to look at, far more than any
training has."""
_OTHERS: Final = 16
"""Mappings of other files take as little time as one of these: 0.5 us each. A process with CUDA has some thousands."""


@dataclass(slots=True)
class DiskUse:
    size: int = 0
    """Bytes on the disk: holes do not count."""
    files: int = 0
    """Files, folders and links."""
    holds_too_many: bool = False
    """True: its processes have too many files open or mapped to look at, so there may be more bytes and files."""

    def exceeds(self, max_bytes: int, max_files: int) -> str:
        """What is exceeded, for people; empty: nothing."""
        if self.size > max_bytes:
            return f"it wrote more than {max_bytes / 2**30:.3g} GiB"
        if self.holds_too_many:
            return f"its processes held more than {MAX_HELD} open files, or {MAX_HELD * _OTHERS} mappings"
        return f"it made more than {max_files} files and folders" if self.files > max_files else ""


@dataclass(slots=True)
class _Level:
    """A folder on the way down: to come back, ".." must lead to it again."""

    place: tuple[int, int]
    """(device, inode)."""
    path: str
    names: list[str] = field(default_factory=list)
    """Folders that are not looked through yet."""


def measure(folder: Path, uid: int | None, *, max_bytes: int, max_files: int) -> DiskUse:
    """What belongs to the user (None: to any) below the folder. Ends early once a bound is exceeded.

    The learner may move folders meanwhile: what then cannot be found again is counted by the next walk.
    """
    walk = _Walk(uid, max_bytes, max_files)
    with suppress(OSError):
        walk.run(_opened(folder), os.path.realpath(folder))
    return walk.use


class _Walk:
    def __init__(self, uid: int | None, max_bytes: int, max_files: int) -> None:
        self.use = DiskUse()
        self._uid = uid
        self._bounds = (max_bytes, max_files)
        self._mounts = mount_points()
        self._linked: set[int] = set()
        """Inodes with several names that were counted."""

    def run(self, fd: int, path: str) -> None:
        """Takes over the descriptor."""
        levels: list[_Level] = []
        try:
            levels.append(self._enter(fd, path))
            while levels and not self.use.exceeds(*self._bounds):
                level = levels[-1]
                if level.names:
                    name = level.names.pop()
                    with suppress(OSError):
                        below = _opened(name, fd)
                        os.close(fd)
                        fd = below
                        levels.append(self._enter(fd, f"{level.path}/{name}"))
                    continue
                levels.pop()
                if levels:
                    above = _opened("..", fd)
                    os.close(fd)
                    fd = above
                    if _place(fd) != levels[-1].place:
                        return  # it was moved
        finally:
            os.close(fd)

    def _enter(self, fd: int, path: str) -> _Level:
        """Counts the entries of the folder."""
        level = _Level(_place(fd), path)
        with suppress(OSError), os.scandir(fd) as entries:
            for entry in entries:
                if f"{path}/{entry.name}" in self._mounts:
                    continue
                with suppress(OSError):
                    self._count(level, entry.name, os.stat(entry.name, dir_fd=fd, follow_symlinks=False))
                if self.use.exceeds(*self._bounds):
                    break
        return level

    def _count(self, level: _Level, name: str, status: os.stat_result) -> None:
        if stat.S_ISDIR(status.st_mode):
            level.names.append(name)
        elif status.st_nlink > 1:
            if status.st_ino in self._linked:
                return
            self._linked.add(status.st_ino)
        if self._uid in {None, status.st_uid}:
            self.use.files += 1
            self.use.size += status.st_blocks * _BLOCK


def add_unnamed(use: DiskUse, pids: Iterable[int], uid: int, device: int) -> None:
    """Counts the user's files on this device that have no name any more, and that these processes hold, each once.

    Ends early if they hold too many.
    """
    counted: set[int] = set()
    left = MAX_HELD * _OTHERS
    for place in _held_files(pids):
        left -= _OTHERS if place else 1
        if left < 0:
            use.holds_too_many = True
            return
        if not place:
            continue
        with suppress(OSError):  # it was closed meanwhile
            status = os.stat(place)  # noqa: PTH116 - Path takes twice as long
            if (
                not status.st_nlink
                and stat.S_ISREG(status.st_mode)
                and (status.st_uid, status.st_dev) == (uid, device)
                and status.st_ino not in counted
            ):
                counted.add(status.st_ino)
                use.files += 1
                use.size += status.st_blocks * _BLOCK


def _held_files(pids: Iterable[int]) -> Iterator[str]:
    """Links of /proc to what the processes have open, or mapped although it was deleted; empty for other mappings."""
    for pid in pids:
        with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            yield from (entry.path for entry in entries)
        with suppress(OSError), Path(f"/proc/{pid}/maps").open("rb") as maps:
            for line in maps:
                is_deleted = line.endswith(b" (deleted)\n")
                yield f"/proc/{pid}/map_files/{os.fsdecode(line.split(b' ', 1)[0])}" if is_deleted else ""


def _opened(name: str | Path, folder: int | None = None) -> int:
    """A descriptor of the folder, which its owner may also search: else nothing in it could be counted."""
    open_to_owner(folder, name, stat.S_IRUSR | stat.S_IXUSR)
    return os.open(name, _FOLDER, dir_fd=folder)


def _place(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
