"""Files that a learner made, opened by a process that may be root: never a link, a pipe, a device, or someone else's.

The learner owns its folders and may change them at any moment, also while they are read. So every step of a path is
opened below a descriptor of the step before, with O_NOFOLLOW; what was opened is looked at through its own descriptor;
and a file counts only if it belongs to the learner (a hard link can give an other's file a name here).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_DEPTH: Final = 64
MAX_FILES: Final = 100_000
_HOLES: Final = 2**30
"""A file whose size exceeds its blocks by more than this is a trap for who copies it, not data."""


@dataclass(frozen=True, slots=True)
class Found:
    """A plain file below the folder that was walked."""

    path: str
    """Relative, '/'-separated."""
    size: int


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
        return open_at(folder, parts[-1], uid)
    finally:
        os.close(folder)


def open_at(folder: int, name: str, uid: int) -> int:
    """The same, below a folder that is open."""
    fd = os.open(name, _FILE, dir_fd=folder)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
        os.close(fd)
        raise PermissionError(f"{name} is no plain file of the learner")
    return fd


def walk(root: Path, parts: Sequence[str], skipped: Callable[[str, str], None]) -> Iterator[Found]:
    """The plain files below ``root/parts...``, folder by folder, in order of their names. Nothing where it is missing.

    ``skipped`` is told (path, why) of what is there and is not given.
    """
    with contextlib.suppress(OSError):
        folder = open_folder(root, parts)
        try:
            for count, found in enumerate(_below(folder, "", 0, skipped)):
                if count >= MAX_FILES:
                    skipped("...", f"there are more than {MAX_FILES} files")
                    return
                yield found
        finally:
            os.close(folder)


def _below(folder: int, prefix: str, depth: int, skipped: Callable[[str, str], None]) -> Iterator[Found]:
    for name in sorted(os.listdir(folder)):
        path = f"{prefix}{name}"
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                if depth >= MAX_DEPTH:
                    skipped(path, "too deep")
                    continue
                below = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    yield from _below(below, f"{path}/", depth + 1, skipped)
                finally:
                    os.close(below)
                continue
        except OSError as error:
            skipped(path, str(error.strerror))
            continue
        if not stat.S_ISREG(status.st_mode):
            skipped(path, "a link" if stat.S_ISLNK(status.st_mode) else "no plain file")
        elif status.st_size - status.st_blocks * 512 > _HOLES:
            skipped(path, "mostly holes")
        else:
            yield Found(path, status.st_size)


def inode_of(root: Path, parts: Sequence[str]) -> int | None:
    """Of what the path names now; None where it names nothing."""
    with contextlib.suppress(OSError):
        folder = open_folder(root, parts[:-1])
        try:
            return os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_ino
        finally:
            os.close(folder)
    return None
