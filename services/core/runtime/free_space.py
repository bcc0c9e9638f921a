"""Free space of file systems: when a disk is so full that no more work should begin.

A disk that is full to the last byte stops everything on it, also what only wants to end. So admission stops while there
is still room for the jobs that run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_FEW_INODES = 10_000


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """The file systems of some folders, and how much of each stays free."""

    folders: Sequence[tuple[str, Path]]
    """(what is on it, for people; a folder on it)."""
    least_bytes: int
    least_percent: float
    """Of two limits the lower one counts: a large disk keeps ``least_bytes`` free, a small one ``least_percent``."""

    def shortage(self) -> str:
        """Says which file system has too little free space or too few free inodes, for people; empty: none.

        It asks the kernel, which may take long on a network file system: call it in a thread.
        """
        for name, folder in self.folders:
            try:
                disk = os.statvfs(folder)
            except OSError:
                continue  # its user reports that, with the reason
            share = self.least_percent / 100
            free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
            if free < min(self.least_bytes, total * share):
                return f"the disk of {name} ({folder}) is almost full: {_size(free)} of {_size(total)} are free"
            # Some file systems (btrfs) have no fixed number of inodes, and report 0.
            if disk.f_files and disk.f_favail < min(_FEW_INODES, disk.f_files * share):
                return f"the disk of {name} ({folder}) has almost no free inodes: {disk.f_favail} of {disk.f_files}"
        return ""


def _size(count: int) -> str:
    """For people: three digits."""
    value, unit = count / 1e6, "MB"
    if value >= 1e3:
        value, unit = value / 1e3, "GB"
    return f"{value:.3g} {unit}" if value < 1e3 else f"{value:.0f} {unit}"
