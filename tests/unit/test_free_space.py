"""Free space of real file systems against its limits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.core.runtime.free_space import FreeSpace
from tests.testbed.mounts import small_disk

HUGE = 2**62
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can be mounted by root only")


def test_disk_with_less_than_both_limits_is_named_with_its_sizes(tmp_path: Path) -> None:
    shortage = FreeSpace([("the job store", tmp_path)], HUGE, 100).shortage()
    assert shortage.startswith(f"the disk of the job store ({tmp_path}) is almost full: ")
    assert shortage.endswith(" are free")


@pytest.mark.parametrize(("least_bytes", "least_percent"), [(0, 100), (HUGE, 0)])
def test_lower_limit_counts(tmp_path: Path, least_bytes: int, least_percent: float) -> None:
    assert FreeSpace([("the job store", tmp_path)], least_bytes, least_percent).shortage() == ""


def test_folder_that_does_not_exist_is_no_shortage(tmp_path: Path) -> None:
    assert FreeSpace([("the job store", tmp_path / "none")], HUGE, 100).shortage() == ""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, "size=10m,nr_inodes=100"):
        yield tmp_path


@needs_root
def test_small_disk_is_almost_full_below_its_percentage_and_no_longer_once_there_is_room(small: Path) -> None:
    free_space = FreeSpace([("learners", small)], 2**30, 10)
    assert free_space.shortage() == ""
    (small / "large").write_bytes(bytes(9_600_000))
    assert free_space.shortage() == f"the disk of learners ({small}) is almost full: 0.885 MB of 10.5 MB are free"
    (small / "large").unlink()
    assert free_space.shortage() == ""


@needs_root
def test_disk_without_inodes_is_full_though_it_has_bytes(small: Path) -> None:
    for number in range(95):
        (small / str(number)).touch()
    assert "has almost no free inodes" in FreeSpace([("learners", small)], 2**30, 10).shortage()
