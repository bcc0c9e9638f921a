"""Logs of services are rotated while the services write to them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from services.core.domain.errors import NoSpace
from services.local.log_rotation import rotate, rotate_logs
from tests.testbed.mounts import small_disk
from tests.waiting import until


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_rotated_log_is_empty_and_its_newest_copies_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "api.log"
    for text in ("one", "two", "three", "four"):
        path.write_text(text)
        rotate(path, copies=2)
        assert path.read_text() == ""
    assert names(tmp_path) == ["api.log", "api.log.1", "api.log.2"]
    assert [(tmp_path / f"api.log.{number}").read_text() for number in (1, 2)] == ["four", "three"]


def test_without_copies_the_content_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "api.log"
    path.write_text("one")
    rotate(path, copies=0)
    assert (names(tmp_path), path.read_text()) == (["api.log"], "")


async def test_log_that_a_service_floods_is_bounded_and_the_service_writes_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "api.log"
    rotating = asyncio.create_task(rotate_logs(tmp_path, most_bytes=1000, copies=1))
    with path.open("ab", buffering=0) as held_open:
        held_open.write(bytes(5000))
        await until(lambda: path.stat().st_size == 0)
        held_open.write(b"next")
    rotating.cancel()
    assert path.read_bytes() == b"next"
    assert (tmp_path / "api.log.1").stat().st_size == 5000


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can be mounted by root only")
def test_log_is_unchanged_while_the_disk_has_no_room_for_its_copy(tmp_path: Path) -> None:
    with small_disk(tmp_path, "size=1m"):
        path = tmp_path / "api.log"
        path.write_bytes(bytes(700_000))
        with pytest.raises(NoSpace):
            rotate(path, copies=3)
        assert names(tmp_path) == ["api.log"]
        assert path.stat().st_size == 700_000
