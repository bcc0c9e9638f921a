"""Scratch files of a folder, and the sweep of those whose writers are dead."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from services.core.adapters.folder import files


@pytest.fixture
def folder(tmp_path: Path) -> Generator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def test_sweep_removes_the_scratch_file_of_a_dead_writer_only(folder: int, tmp_path: Path) -> None:
    (tmp_path / "dead").write_bytes(b"half")
    with files.scratch(folder, "alive"):
        assert files.sweep(folder) == 1
        assert os.listdir(folder) == ["alive"]


def test_an_object_being_stored_is_kept_while_two_processes_sweep(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen as "could not be stored: its folder is removed repeatedly" when two services started at once.

    Both sweeps open a file before its writer locks it. The first removes it; the writer makes another of the same name.
    """
    locked = fcntl.flock
    (tmp_path / "object").write_bytes(b"")
    made_anew: list[int] = []

    def flock_of_the_second_sweep(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", locked)
        os.unlink("object", dir_fd=folder)
        made_anew.append(writer.enter_context(files.scratch(folder, "object")))
        locked(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_of_the_second_sweep)
    with ExitStack() as writer:
        removed = files.sweep(folder)
        assert (removed, os.listdir(folder), len(made_anew)) == (0, ["object"], 1)
