"""The kernel wakes a helper whose learner has been quiet."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.helper.changes import Changes, watch_folder
from services.helper.wakeup import Wakeup
from tests.waiting import HANG_S

LONG_S = HANG_S
"""Far beyond the time of a wake-up: a test that is not woken fails."""


@pytest.fixture
def changes() -> Generator[Changes]:
    made = Changes()
    yield made
    made.close()


def append(path: Path) -> None:
    with path.open("a") as out:
        out.write("x")


def cut(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("change", [append, cut])
async def test_a_change_of_the_file_wakes_also_if_it_came_before_the_wait(
    changes: Changes, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "out"
    path.write_text("some")
    wakeup = Wakeup()
    with path.open() as file:
        assert changes.file(file.fileno())
        change(path)
        changes.arm(wakeup.set)
        assert await wakeup.wait(LONG_S)
        changes.disarm()
    wakeup.clear()
    changes.arm(wakeup.set)
    assert not await wakeup.wait(0.01), "what was noticed is forgotten"
    changes.disarm()


async def test_new_file_in_a_watched_folder_wakes_the_waiter(changes: Changes, tmp_path: Path) -> None:
    assert watch_folder(changes.folder, tmp_path, ())
    wakeup = Wakeup()
    changes.arm(wakeup.set)
    (tmp_path / "metrics.jsonl").write_text("")
    assert await wakeup.wait(LONG_S)
    changes.disarm()


@pytest.mark.parametrize("saved", ["new", "renamed", "overwritten"])
async def test_file_that_is_saved_in_a_watched_folder_wakes_the_waiter(
    changes: Changes, tmp_path: Path, saved: str
) -> None:
    place = tmp_path / "checkpoints"
    place.mkdir()
    (place / "overwritten").write_text("step 1")
    (tmp_path / "whole").write_text("step 2")
    assert watch_folder(changes.content, tmp_path, [place.name])
    wakeup = Wakeup()
    changes.arm(wakeup.set)
    if saved == "renamed":
        (tmp_path / "whole").rename(place / saved)
    else:
        (place / saved).write_text("step 2")
    assert await wakeup.wait(LONG_S)
    changes.disarm()


async def test_file_in_a_folder_that_was_removed_and_made_again_wakes_the_waiter(
    changes: Changes, tmp_path: Path
) -> None:
    """Most file systems give the new folder the inode of the old one, and the kernel's watch went with the old one."""
    place, wakeup = tmp_path / "checkpoints", Wakeup()
    place.mkdir()
    assert watch_folder(changes.content, tmp_path, [place.name])
    place.rmdir()
    place.mkdir()
    changes.arm(wakeup.set)
    assert await wakeup.wait(LONG_S), "the end of the old folder"
    changes.disarm()
    wakeup.clear()
    assert watch_folder(changes.content, tmp_path, [place.name])
    changes.arm(wakeup.set)
    (place / "step-2").write_text("")
    assert await wakeup.wait(LONG_S)
    changes.disarm()


def test_a_learner_that_replaces_its_files_for_ever_does_not_use_up_the_machines_watches(
    changes: Changes, tmp_path: Path
) -> None:
    refused = 0
    for number in range(200):
        path = tmp_path / str(number)
        path.write_text("")
        with path.open() as file:
            refused += not changes.file(file.fileno())
    assert refused == 200 // 65


async def test_a_machine_without_inotify_leaves_the_helper_to_look_for_itself(tmp_path: Path) -> None:
    """Descriptors run out as inotify's instances do (EMFILE), and can be taken by one process alone."""
    without = Changes()
    with (tmp_path / "out").open("w") as file, no_descriptor_left():
        assert not without.file(file.fileno())
    without.arm(lambda: None)
    without.disarm()
    with (tmp_path / "out").open("w") as file:
        assert without.file(file.fileno()), "it is tried again"
    without.close()


@contextmanager
def no_descriptor_left() -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
