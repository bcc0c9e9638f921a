"""What fetching leaves free of a machine's disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.core.domain.outages import Outage
from services.helper.fetch.progress import FetchFailed
from services.helper.fetch.space import check_space


def a_disk(*, files: int, left: int) -> os.statvfs_result:
    """A disk with much space, and so many files and folders."""
    return os.statvfs_result((4096, 4096, 2**30, 2**30, 2**30, files, left, left, 0, 255))


def test_fetching_leaves_files_of_a_disk_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for disk in (a_disk(files=10**6, left=10_000), a_disk(files=1_000, left=50), a_disk(files=0, left=0)):
        monkeypatch.setattr(os, "statvfs", lambda _, disk=disk: disk)
        check_space(tmp_path, 1, 1, "a.txt")
    for disk in (a_disk(files=10**6, left=9_999), a_disk(files=1_000, left=49)):
        monkeypatch.setattr(os, "statvfs", lambda _, disk=disk: disk)
        with pytest.raises(FetchFailed, match=r"has room for .* files only") as refused:
            check_space(tmp_path, 1, 1, "a.txt")
        assert refused.value.reason == Outage.NO_SPACE
        check_space(tmp_path, 0, 1, "a.txt")
