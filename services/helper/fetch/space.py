"""Room on the disks that fetching fills. Some of it is kept: where it is used up, learners that run are ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from services.core.domain.outages import Outage
from services.helper.fetch.progress import FetchFailed

_INODES: Final = 10_000
"""Files and folders that fetching leaves to others, of a disk with few of them: twice the node's reserve of them."""
_SHARE_OF_INODES: Final = 20


def check_space(folder: Path, keep_free: int, more: int, what: str) -> None:
    """Raises FetchFailed (an outage) if ``more`` bytes of ``what`` would leave less than ``keep_free`` bytes, or if the
    disk has room for few more files.
    """
    if not keep_free:
        return
    disk = os.statvfs(folder)
    if disk.f_favail < min(_INODES, disk.f_files // _SHARE_OF_INODES):
        raise FetchFailed(
            Outage.NO_SPACE,
            f"{what} needs another file, and the disk of the machine that was chosen for it has room for"
            f" {disk.f_favail} files only",
        )
    room = max(0, disk.f_bavail * disk.f_frsize - keep_free)
    if more > room:
        raise FetchFailed(
            Outage.NO_SPACE,
            f"{what} needs {more / 2**30:.3g} GiB more, and the disk of the machine that was chosen for it has"
            f" {room / 2**30:.3g} GiB left for data",
        )
