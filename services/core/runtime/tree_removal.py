"""Removal of folders that a learner has filled: iterative, by descriptor, without following a link or entering a mount.

Each folder is moved up into the folder that is removed, before it is opened. So the depth costs neither
stack nor descriptors, and no path is longer than two names. The kernel refuses to move a mount point (EBUSY), so none
is entered: a file system served by a process (FUSE) may never answer. Bytes of names are kept as they are.
"""

from __future__ import annotations

import errno
import functools
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from services.core.domain.text import storable_name
from services.core.runtime.outcomes import Outcome, outcome_of

QUARANTINE_FOLDER: Final = ".quarantine"
"""In ``node``: folders that cannot be removed now. The agent shows them, and tries to remove them again."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BATCH: Final = 10_000
"""Entries that are listed at once: a folder may have millions."""
_MAX_PROBLEMS: Final = 1_000
"""After so many the rest is not tried."""


class NotRemoved(OSError):
    """Something stays. The message says what and why."""


def remove_tree(path: Path, *, within_s: float | None = None) -> None:
    """Removes the folder with all its contents, also below folders that their owner has closed.

    Raises NotRemoved if something stays, or after about ``within_s`` seconds; what could be removed is gone then.
    """
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_below(parent, path.name, within_s=within_s)
    finally:
        os.close(parent)


def remove_below(parent: int, name: str, *, within_s: float | None = None) -> None:
    """As ``remove_tree``, for what has this name in the folder of the descriptor ``parent``.

    No path leads there, so a stranger who may change the folders above does not choose what is removed.
    """
    _Removal(parent, name, None if within_s is None else time.monotonic() + within_s).run()


def remove_bounded(path: Path, within_s: float) -> None:
    """``remove_tree`` in a thread of its own, which is left behind if the kernel does not come back. NotRemoved."""
    outcome: list[Outcome[None]] = []
    thread = threading.Thread(
        target=lambda: outcome.append(outcome_of(lambda: remove_tree(path, within_s=within_s))), daemon=True
    )
    thread.start()
    thread.join(2 * within_s)
    if not outcome:
        raise NotRemoved(errno.ETIMEDOUT, "the file system does not answer")
    outcome[0].result()


class _Removal:
    def __init__(self, parent: int, name: str, deadline: float | None) -> None:
        self._parent = parent
        self._name = name
        self._deadline = deadline
        self._moved = f".moved-{secrets.token_hex(8)}-"
        """Beginning of the names of folders that were moved up: no other name begins like this."""
        self._count = 0
        self._pending: list[str] = []
        """Folders that were moved up and are not emptied yet."""
        self._problems: list[tuple[str, OSError]] = []

    def run(self) -> None:
        open_to_owner(self._parent, self._name)
        try:
            top = os.open(self._name, _FOLDER, dir_fd=self._parent)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
                raise NotRemoved(error.errno, f"{storable_name(self._name)}: {error.strerror}") from error
            os.unlink(self._name, dir_fd=self._parent)
            return
        try:
            self._empty(top, top)
            while self._pending:
                self._remove_moved(self._pending.pop(), top)
        finally:
            os.close(top)
        self._try(lambda: os.rmdir(self._name, dir_fd=self._parent), self._name)
        self._raise_problems()

    def _remove_moved(self, name: str, top: int) -> None:
        try:
            folder = os.open(name, _FOLDER, dir_fd=top)
        except OSError as error:
            self._keep(name, error)
            return
        try:
            self._empty(folder, top)
        finally:
            os.close(folder)
        self._try(lambda: os.rmdir(name, dir_fd=top), name)

    def _empty(self, folder: int, top: int) -> None:
        """Unlinks the files, and moves the folders up."""
        kept: set[str] = set()
        while names := self._list(folder, kept):
            for name, is_folder in names:
                if self._deadline is not None and time.monotonic() > self._deadline:
                    raise NotRemoved(errno.ETIMEDOUT, f"{storable_name(name)}: there is too much to remove at once")
                move_up = functools.partial(self._move_up, name, folder, top)
                if not self._try(move_up if is_folder else functools.partial(os.unlink, name, dir_fd=folder), name):
                    kept.add(name)

    def _list(self, folder: int, kept: set[str]) -> list[tuple[str, bool]]:
        """(name, is a folder) of up to ``_BATCH`` entries, without touching them: the folder states their types."""
        with os.scandir(folder) as entries:
            present = (entry for entry in entries if entry.name not in kept and not entry.name.startswith(self._moved))
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(present, _BATCH)]

    def _move_up(self, name: str, folder: int, top: int) -> None:
        # Not rmdir first: of a deep folder it would walk through all that the kernel knows below it.
        open_to_owner(folder, name)
        moved = f"{self._moved}{self._count}"
        os.rename(name, moved, src_dir_fd=folder, dst_dir_fd=top)
        self._count += 1
        self._pending.append(moved)

    def _try(self, act: Callable[[], None], name: str) -> bool:
        """False if it failed."""
        try:
            act()
        except FileNotFoundError:
            return True
        except OSError as error:
            self._keep(name, error)
            return False
        return True

    def _keep(self, name: str, error: OSError) -> None:
        self._problems.append((name, error))
        if len(self._problems) == _MAX_PROBLEMS:
            self._raise_problems()

    def _raise_problems(self) -> None:
        for name, error in self._problems:  # the first explains the others
            raise NotRemoved(error.errno, f"{storable_name(name)}: {error.strerror}") from error


def move_to_quarantine(folder: Path, node: Path, *, job: str, attempt: int, uid: int) -> Path:
    """Renames a folder below ``node`` to ``.quarantine/<job>.<attempt>.<uid>.<token>``. Returns its new place.

    A rename touches nothing inside. Raises OSError.
    """
    quarantine = node / QUARANTINE_FOLDER
    quarantine.mkdir(mode=0o700, exist_ok=True)
    return folder.rename(quarantine / f"{job}.{attempt}.{uid}.{secrets.token_hex(4)}")


def open_to_owner(folder: int | None, name: str | Path, rights: int = stat.S_IRWXU) -> None:
    """Adds rights of the owner to a folder, so that it can be used without root. A link is left as it is.

    ``folder``: the descriptor that ``name`` starts at; None: the working folder. Does nothing as root, and to what
    belongs to others.
    """
    if os.geteuid() == 0:
        return
    with suppress(OSError):
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISDIR(mode) and mode & rights != rights:
                os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode) | rights)  # noqa: PTH101 - no O_PATH descriptor
        finally:
            os.close(fd)
