"""Learners are measured when they may have written much, and seldom while they write little."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.node.disk_watch import DiskWatch
from services.node.frozen_count import FrozenCount
from services.node.instrumentation import Instrumentation
from services.node.settings import NodeSettings


def watch(home: Path, *, max_bytes: int | None = None, max_files: int = 10**9) -> DiskWatch:
    (home / "node").mkdir()
    settings = NodeSettings(
        home=home, disk_free_bytes=0, disk_free_percent=0, node_disk=max_bytes, node_files=max_files
    )
    return DiskWatch(settings, Instrumentation(CollectorRegistry()), list, FrozenCount(home))


async def test_while_the_disk_does_not_fill_one_round_in_six_is_made(tmp_path: Path) -> None:
    disk = watch(tmp_path)  # bounds of half the disk: other programs may write some gigabytes meanwhile
    assert [await disk.observe() for _ in range(13)] == [number % 6 == 0 for number in range(13)]


@pytest.mark.parametrize("resource", ["bytes", "files"])
async def test_a_round_is_made_once_a_hundredth_of_a_bound_may_have_been_written(tmp_path: Path, resource: str) -> None:
    if resource == "files" and not os.statvfs(tmp_path).f_files:
        pytest.skip("this file system does not count its files")
    disk = watch(tmp_path, max_bytes=10**9, max_files=50_000)
    assert await disk.observe()
    if resource == "bytes":
        with (tmp_path / "large").open("wb") as file:
            file.write(os.urandom(2 * 10**7))
            os.fsync(file.fileno())
    else:
        for number in range(1_000):
            (tmp_path / f"{number}").touch()
    assert await disk.observe()
