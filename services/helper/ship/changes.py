"""Sleeping while nothing is written: the kernel says when a file changed (inotify), instead of being asked for ever.

A hint, like all events: whoever waits here looks at the files again after a second at the latest, and where a machine
has no inotify left to give (there are few per user), it looks ten times a second. Only armed once a source has gone
quiet: while a learner writes, looking at sizes in turns costs less than an event for each line.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from typing import Final

_MODIFY: Final = 0x2
_CREATE_OR_MOVED_TO: Final = 0x100 | 0x80
_MOST: Final = 64
"""Watches: a learner that replaces its files for ever must not use up the machine's."""
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Changes:
    """What was watched stays watched: ``arm`` misses nothing that happened since it was added."""

    def __init__(self) -> None:
        self._fd = -1
        self._watched: set[tuple[int, int]] = set()
        self._begin()

    def _begin(self) -> None:
        self.close()
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watched.clear()

    def file(self, fd: int) -> bool:
        """From now on, writes to the open file wake. False where that cannot be had."""
        return self._add(fd, _MODIFY)

    def folder(self, fd: int) -> bool:
        """From now on, new names in the open folder wake."""
        return self._add(fd, _CREATE_OR_MOVED_TO)

    def arm(self, wake: Callable[[], None]) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().add_reader(self._fd, wake)

    def disarm(self) -> None:
        """And forgets what has happened: it is looked at next."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            try:
                while os.read(self._fd, 65_536):
                    pass
            except BlockingIOError:
                return

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _add(self, fd: int, mask: int) -> bool:
        status = os.fstat(fd)
        which = (status.st_dev, status.st_ino)
        if self._fd < 0 or which in self._watched:
            return self._fd >= 0
        if len(self._watched) >= _MOST:
            self._begin()
            return False  # this time; what was watched before has to be added again
        # By descriptor: what the path means now may be another file.
        if _libc.inotify_add_watch(self._fd, f"/proc/self/fd/{fd}".encode(), mask) < 0:
            return False
        self._watched.add(which)
        return True
