"""Waits for changes of files without polling: the kernel reports them (inotify).

An event only wakes: the caller looks at the files again after a while in any case, and polls where the machine has no
inotify left to give (there are few per user). Only armed once a source has gone quiet: while a learner writes,
looking at sizes in turns costs less than an event for each line.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from inotify_simple import INotify, flags

from services.helper.learner_files import open_folder

_NEW_NAMES: Final = flags.CREATE | flags.MOVED_TO
_NEW_CONTENT: Final = _NEW_NAMES | flags.CLOSE_WRITE
_WATCHES_AT_MOST: Final = 64
"""A learner that replaces its files for ever must not use up the machine's."""


def watch_folder(add: Callable[[int], bool], root: Path, parts: Sequence[str]) -> bool:
    """Adds the folder ``root/parts...`` by ``add``, a method of ``Changes``. False where it is missing, too."""
    try:
        folder = open_folder(root, parts)
    except OSError:  # a learner can remove its folders
        return False
    try:
        return add(folder)
    finally:
        os.close(folder)


class Changes:
    """Watches open files and folders. ``arm`` misses nothing that happened since one was added."""

    def __init__(self) -> None:
        self._inotify: INotify | None = None
        self._watched: dict[int, tuple[int, int]] = {}
        """The kernel's number of a watch -> (device, inode)."""

    def file(self, fd: int) -> bool:
        """From now on, writes to the open file wake. False where the machine, or this object, has no watch left."""
        return self._add(fd, flags.MODIFY)

    def folder(self, fd: int) -> bool:
        """From now on, new names in the open folder wake. False as for a file."""
        return self._add(fd, _NEW_NAMES)

    def content(self, fd: int) -> bool:
        """From now on, new names in the open folder wake, and files in it that were written. False as for a file."""
        return self._add(fd, _NEW_CONTENT)

    def arm(self, wake: Callable[[], None]) -> None:
        """Calls ``wake`` at every change, until disarmed."""
        if self._inotify is not None:
            asyncio.get_running_loop().add_reader(self._inotify.fileno(), wake)

    def disarm(self) -> None:
        """Ends ``arm`` and forgets what has happened: the caller looks at the files next."""
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            for event in self._inotify.read(timeout=0):
                if event.mask & flags.IGNORED:
                    # The file is gone, and its watch with it. The next file may have the same inode.
                    self._watched.pop(event.wd, None)
                elif event.mask & flags.Q_OVERFLOW:
                    self._watched.clear()  # adding a watch that is there changes nothing

    def close(self) -> None:
        """Forgets all watches; adding one begins anew."""
        if self._inotify is not None:
            self._inotify.close()
        self._inotify = None
        self._watched.clear()

    def _add(self, fd: int, mask: int) -> bool:
        status = os.fstat(fd)
        file_id = (status.st_dev, status.st_ino)
        if file_id in self._watched.values():
            return True
        if len(self._watched) >= _WATCHES_AT_MOST:
            self.close()
            return False  # this time; those watched before have to be added again
        try:
            if self._inotify is None:
                self._inotify = INotify(nonblocking=True)
            # By descriptor: what the path means now may be another file.
            watch = self._inotify.add_watch(f"/proc/self/fd/{fd}", mask)
        except OSError:
            return False
        self._watched[watch] = file_id
        return True
