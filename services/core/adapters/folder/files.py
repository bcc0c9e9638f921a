"""Files that are whole and durable, or absent; links are never followed.

Every folder of a path is opened by descriptor with O_NOFOLLOW, so that nothing planted inside the root leads out of it.
A file is written as a scratch file and fsynced, then linked (only if new) or renamed to its place; then the folder is
fsynced. A scratch file is locked while it is written, so that ``sweep`` can tell the files of dead writers from others.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Generator, Sequence
from typing import Final

from services.core.domain.errors import InvalidRequest, NoSpace, Unavailable, WeftError

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NAME_REFUSED: Final = frozenset({errno.EILSEQ, errno.ENAMETOOLONG})
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def translated(error: OSError, what: str) -> WeftError:
    """The WeftError for an OSError. ``what`` names what was read or written."""
    if error.errno in FULL:
        return NoSpace(f"no space left for {what}; make room and try again")
    if error.errno in _NAME_REFUSED:
        return InvalidRequest(f"the file system of the object store refuses the name {what}")
    return Unavailable(f"{what} cannot be read or written now: {error.strerror}")


@contextlib.contextmanager
def folder(root: int, parts: Sequence[str], *, create: bool = False) -> Generator[int]:
    """A descriptor of the folder below ``root``. Folders that it creates are durable.

    Raises FileNotFoundError, or NotADirectoryError for a file or a link.
    """
    current = os.dup(root)
    try:
        for part in parts:
            try:
                below = os.open(part, _FOLDER, dir_fd=current)
            except FileNotFoundError:
                if not create:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=current)
                os.fsync(current)
                below = os.open(part, _FOLDER, dir_fd=current)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


@contextlib.contextmanager
def scratch(where: int, name: str) -> Generator[int]:
    """Creates a locked file of this name, readable by the owner only; removes it at the end unless it was moved."""
    descriptor = os.open(name, _NEW, 0o600, dir_fd=where)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    while os.fstat(descriptor).st_nlink == 0:  # swept between the two lines above
        os.close(descriptor)
        descriptor = os.open(name, _NEW, 0o600, dir_fd=where)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield descriptor
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=where)
        os.close(descriptor)


def publish(scratch_in: int, scratch_name: str, place: int, name: str, *, create_only: bool) -> None:
    """Moves the scratch file to its place, durably. FileExistsError if ``create_only`` and the name is taken."""
    if create_only:
        os.link(scratch_name, name, src_dir_fd=scratch_in, dst_dir_fd=place, follow_symlinks=False)
    else:
        os.rename(scratch_name, name, src_dir_fd=scratch_in, dst_dir_fd=place)
    os.fsync(place)


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    """Writes all bytes, in as many calls as the system needs."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sweep(where: int) -> int:
    """Removes scratch files whose writers are dead; returns how many."""
    removed = 0
    for name in os.listdir(where):
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=where)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(name, dir_fd=where, follow_symlinks=False)):
                os.unlink(name, dir_fd=where)
                removed += 1
            # Else another sweep removed the file that was opened, and its writer has made it anew.
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return removed


def is_file(status: os.stat_result) -> bool:
    """True for a regular file, not a link, folder, pipe or device."""
    return stat.S_ISREG(status.st_mode)
