"""Learners are measured when they may have written much, and seldom while they write little."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.node.disk_watch import DiskWatch
from services.node.frozen_count import FrozenCount
from services.node.instrumentation import Instrumentation
from services.node.settings import NodeSettings

FREE: tuple[int, int] = (10**12, 10**7)
"""Bytes and files."""


class Disk:
    """What is free on the disk. Learners may have 10^9 bytes and 50,000 files."""

    def __init__(self, home: Path) -> None:
        (home / "node").mkdir()
        self.free: tuple[int, int] = FREE
        settings = NodeSettings(home=home, disk_free_bytes=0, disk_free_percent=0, node_disk=10**9, node_files=50_000)
        self.watch = DiskWatch(
            settings, Instrumentation(CollectorRegistry()), list, FrozenCount(home), measure_free=lambda _: self.free
        )

    async def observe(self, rounds: int) -> list[int]:
        """The numbers of the rounds that were made, of so many."""
        return [number for number in range(rounds) if await self.watch.observe()]


async def test_while_the_disk_does_not_fill_one_round_in_six_is_made(tmp_path: Path) -> None:
    assert await Disk(tmp_path).observe(19) == [0, 6, 12, 18]


@pytest.mark.parametrize("free", [(FREE[0] - 11 * 10**6, FREE[1]), (FREE[0], FREE[1] - 501)], ids=["bytes", "files"])
async def test_a_round_is_made_once_more_than_a_hundredth_of_a_bound_may_have_been_written(
    tmp_path: Path, free: tuple[int, int]
) -> None:
    disk = Disk(tmp_path)
    assert await disk.observe(3) == [0]
    disk.free = free
    assert await disk.observe(3) == [0]


async def test_little_that_is_written_again_and_again_is_measured_once_it_is_much(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    made = []
    for number in range(5):
        disk.free = (FREE[0] - number * 4 * 10**6, FREE[1])
        made += [number] * len(await disk.observe(1))
    assert made == [0, 3]
