"""Files that a learner made, opened by a process that may be root: never a link, a pipe, a device, another user's file.

The learner owns its folders and may change them at any moment, also while they are read. So each step of a path is
opened below a descriptor of the step before, with O_NOFOLLOW; properties are read from the open descriptor; and a file
counts only if it belongs to the learner (a hard link can give another user's file a name here).

Listing a tree is bounded in depth, entries, memory and descriptors, whatever the learner has made. Mounts inside are
skipped without touching them: a file system served by a process (FUSE) may never answer.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from services.core.domain.text import storable_name

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_DEPTH: Final = 64
"""Folders inside one another that are listed."""
MAX_ENTRIES: Final = 100_000
"""Files and folders of one tree that are listed."""
_HOLES: Final = 2**30
"""Bytes. A file with more holes than this, and less than a tenth of data, would fill stores with zeros."""
_DATA_SHARE: Final = 10
_MAX_EXTENTS: Final = 100_000
"""Stretches of data that are counted in one file; the rest is taken to be like them."""
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class LearnerFile:
    """A plain file below the folder that was listed."""

    path: str
    """Relative, '/'-separated, as the system names it: bytes that are no UTF-8 are surrogates."""
    name: str
    """The same as it is stored: see ``storable_name``. No other file of the tree has it."""
    size: int
    """Bytes."""
    mtime_ns: int = field(default=0, compare=False)
    ctime_ns: int = field(default=0, compare=False)
    inode: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """An entry that is not stored."""

    name: str
    """Relative, for people."""
    why: str
    has_data: bool
    """Whether content of the learner is missing; False for links, pipes and the like."""


def open_folder(root: Path, parts: Sequence[str]) -> int:
    """A descriptor of ``root/parts...``; OSError where any part is missing or no plain folder. ``root`` is trusted."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            below = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
    except OSError:
        os.close(fd)
        raise
    return fd


def open_file(root: Path, parts: Sequence[str], uid: int) -> int:
    """A descriptor of the learner's plain file; OSError otherwise."""
    folder = open_folder(root, parts[:-1])
    try:
        return _open_at(folder, parts[-1], uid)
    finally:
        os.close(folder)


def _open_at(folder: int, name: str, uid: int) -> int:
    fd = os.open(name, _FILE, dir_fd=folder)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
        os.close(fd)
        raise PermissionError(f"{storable_name(name)} is no plain file of the learner")
    return fd


def inode_of(root: Path, parts: Sequence[str]) -> int | None:
    """The inode that the path names now; None where it names nothing."""
    with contextlib.suppress(OSError):
        folder = open_folder(root, parts[:-1])
        try:
            return os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_ino
        finally:
            os.close(folder)
    return None


def list_files(root: Path, parts: Sequence[str], uid: int) -> Iterator[LearnerFile | SkippedFile]:
    """Everything below ``root/parts...`` but folders, depth first, in order of names. Nothing where it is missing.

    Never raises OSError: what cannot be read is a SkippedFile.
    """
    try:
        folder = open_folder(root, parts)
    except FileNotFoundError:
        return
    except OSError as error:
        yield SkippedFile(".", _explain(error), has_data=True)
        return
    top = os.fsencode("/".join((os.path.realpath(root), *parts)))
    yield from _Listing(folder, uid, _mounts_below(top))


@dataclass(slots=True)
class _Level:
    """A folder that is being listed."""

    fd: int
    path: str
    """Relative, with a '/' at its end; empty for the top."""
    names: Iterator[str]
    taken: frozenset[str]


class _Listing:
    """Depth first with a stack of descriptors of its own: no recursion, at most ``MAX_DEPTH`` + 1 of them open."""

    def __init__(self, top: int, uid: int, mounts: frozenset[str]) -> None:
        self._top = top
        self._uid = uid
        self._mounts = mounts
        self._left = MAX_ENTRIES
        self._is_cut = False
        self._levels: list[_Level] = []

    def __iter__(self) -> Iterator[LearnerFile | SkippedFile]:
        try:
            if (problem := self._enter(self._top, "", ".")) is not None:
                yield problem
            while self._levels:
                level = self._levels[-1]
                name = next(level.names, None)
                if name is None:
                    os.close(self._levels.pop().fd)
                elif (entry := self._entry(level, name)) is not None:
                    yield entry
            if self._is_cut:
                yield SkippedFile("...", f"there are more than {MAX_ENTRIES} files and folders", has_data=True)
        finally:
            for level in self._levels:
                os.close(level.fd)

    def _enter(self, fd: int, path: str, shown: str) -> SkippedFile | None:
        """Takes over the descriptor."""
        try:
            with os.scandir(fd) as entries:
                names = [entry.name for entry in islice(entries, self._left + 1)]
        except OSError as error:
            os.close(fd)
            return SkippedFile(shown, _explain(error), has_data=True)
        if len(names) > self._left:
            self._is_cut = True
            names = names[: self._left]
        self._left -= len(names)
        self._levels.append(_Level(fd, path, iter(sorted(names)), frozenset(names)))
        return None

    def _entry(self, level: _Level, name: str) -> LearnerFile | SkippedFile | None:
        """None for a folder, which is listed next."""
        path = level.path + name
        shown = storable_name(path)
        if path in self._mounts:
            return SkippedFile(shown, "another file system is mounted there", has_data=False)
        if (written := storable_name(name)) != name and written in level.taken:
            return SkippedFile(shown, "its name can only be stored as another file's", has_data=True)
        try:
            status = os.stat(name, dir_fd=level.fd, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                if len(self._levels) > MAX_DEPTH:
                    return SkippedFile(shown, f"more than {MAX_DEPTH} folders inside one another", has_data=True)
                return self._enter(os.open(name, _FOLDER, dir_fd=level.fd), f"{path}/", shown)
            if not stat.S_ISREG(status.st_mode):
                why = "it is a link" if stat.S_ISLNK(status.st_mode) else "it is no plain file"
                return SkippedFile(shown, why, has_data=False)
            if status.st_uid != self._uid:
                return SkippedFile(shown, "it belongs to another user", has_data=True)
            if self._is_mostly_holes(level, name, status):
                return SkippedFile(shown, "it is mostly holes", has_data=True)
        except OSError as error:
            return SkippedFile(shown, _explain(error), has_data=True)
        return LearnerFile(path, shown, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def _is_mostly_holes(self, level: _Level, name: str, status: os.stat_result) -> bool:
        # Blocks are a first guess only: they are few, too, where the file system compresses or has yet to write.
        if status.st_size - status.st_blocks * 512 <= _HOLES:
            return False
        fd = _open_at(level.fd, name, self._uid)
        try:
            return mostly_holes(fd, status.st_size)
        finally:
            os.close(fd)


def mostly_holes(fd: int, size: int) -> bool:
    """Whether an open file of ``size`` bytes has more than 1 GiB of holes and less than a tenth of data.

    Asks for the data itself (SEEK_DATA, SEEK_HOLE): the blocks of a file say how it is written, not what is in it.
    """
    data = position = 0
    for _ in range(_MAX_EXTENTS):
        try:
            begin = os.lseek(fd, position, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole follows
            position = size
            break
        position = os.lseek(fd, begin, os.SEEK_HOLE)
        data += position - begin
        if data * _DATA_SHARE >= size:
            return False
        if position >= size:
            break
    return position - data > _HOLES and data * _DATA_SHARE < position


def _mounts_below(top: bytes) -> frozenset[str]:
    """Relative paths of the mounts below a folder."""
    try:
        mounts = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return frozenset()
    if top + b"/" not in mounts and b"\\" not in mounts:
        return frozenset()  # mostly: a listing is made each second, and a machine may have hundreds of mounts
    lines = mounts.splitlines()
    points = (_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), line.split(b" ")[4]) for line in lines)
    return frozenset(os.fsdecode(point[len(top) + 1 :]) for point in points if point.startswith(top + b"/"))


def _explain(error: OSError) -> str:
    return error.strerror or str(error)
