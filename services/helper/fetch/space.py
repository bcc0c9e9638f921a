"""Room on the disks that fetching fills. Some of it is kept: where it is used up, learners that run are ended."""

from __future__ import annotations

import os
from pathlib import Path

from services.core.domain.outages import Outage
from services.helper.fetch.progress import FetchFailed


def check_space(folder: Path, keep_free: int, more: int, what: str) -> None:
    """Raises FetchFailed (an outage) if ``more`` bytes of ``what`` would leave less than ``keep_free`` bytes."""
    if not keep_free:
        return
    disk = os.statvfs(folder)
    room = max(0, disk.f_bavail * disk.f_frsize - keep_free)
    if more > room:
        raise FetchFailed(
            Outage.NO_SPACE,
            f"{what} needs {more / 2**30:.3g} GiB more, and the disk of the machine that was chosen for it has"
            f" {room / 2**30:.3g} GiB left for data",
        )
