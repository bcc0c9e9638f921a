"""How much a learner has written is measured whatever it has made, and counted once."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.core.runtime.tree_removal import remove_tree
from services.node import disk
from services.node.disk import DiskUse, add_unnamed, measure
from tests.testbed.deep_folders import make_deep

PLENTY = {"max_bytes": 2**40, "max_files": 10**9}


def used(folder: Path) -> DiskUse:
    return measure(folder, os.geteuid(), **PLENTY)


def test_files_in_nested_folders_count_once_however_many_names_they_have(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/d").mkdir()
    empty = used(tmp_path)
    assert empty.files == 4
    (tmp_path / "a/b/c/data").write_bytes(b"x" * 2**20)
    once = used(tmp_path)
    assert 2**20 <= once.size - empty.size < 2**21
    for place in ("a/link", "a/b/link", "link"):
        (tmp_path / place).hardlink_to(tmp_path / "a/b/c/data")
    assert used(tmp_path).size == once.size


@pytest.mark.parametrize("mode", [0o300, 0o600, 0o000])
def test_what_a_learner_hides_in_a_closed_folder_counts_without_root(without_root: Path, mode: int) -> None:
    hidden = without_root / "a/hidden"
    (hidden / "deep").mkdir(parents=True)
    (hidden / "deep/data").write_bytes(b"x" * 2**20)
    for folder in (hidden / "deep", hidden, without_root / "a", without_root):
        folder.chmod(mode)
    assert used(without_root).size >= 2**20
    assert used(without_root).files == 4


def test_holes_and_targets_of_links_do_not_count(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**35)
    (tmp_path / "root").symlink_to("/")
    assert used(tmp_path).size < 2**20
    assert used(tmp_path).files == 2


def test_files_of_other_users_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 2**20)
    assert measure(tmp_path, os.geteuid() + 1, **PLENTY) == DiskUse()


@pytest.mark.slow
def test_what_lies_below_thousands_of_folders_counts(tmp_path: Path) -> None:
    folder = make_deep(tmp_path, "deep-deep-deep", 2000)
    with os.fdopen(os.open("data", os.O_WRONLY | os.O_CREAT, dir_fd=folder), "wb") as file:
        file.write(b"x" * 2**22)
    os.close(folder)
    assert used(tmp_path).size > 2**22
    remove_tree(tmp_path / "deep-deep-deep")  # no other program removes so deep a tree


def test_a_walk_ends_once_a_bound_is_exceeded(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / str(number)).mkdir()
    use = measure(tmp_path, os.geteuid(), max_bytes=2**40, max_files=10)
    assert use.files == 11
    assert use.exceeds(2**40, 10) == "it made more than 10 files and folders"
    assert DiskUse(size=2**31).exceeds(2**30, 10) == "it wrote more than 1 GiB"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """The bound of what processes hold, in a test."""
    monkeypatch.setattr(disk, "MAX_HELD", 1000)
    return disk.MAX_HELD


def test_processes_that_share_a_large_table_of_descriptors_exceed_the_bound_and_are_not_looked_at_for_hours(
    tmp_path: Path, few: int
) -> None:
    with (tmp_path / "file").open("w") as file:
        copies = [os.dup(file.fileno()) for _ in range(few // 10)]
        processes = itertools.chain([os.getpid()] * 20)  # each process of a shared table shows all of it
        use = DiskUse()
        add_unnamed(use, processes, os.geteuid(), tmp_path.stat().st_dev)
        for copy in copies:
            os.close(copy)
    assert use.exceeds(**PLENTY).startswith("its processes held more than 1000 open files")
    assert list(processes), "it looked at all of them"


HOLDS = """
import os, signal, sys
for _ in range(int(sys.argv[1])):
    os.dup(0)
print(flush=True)
signal.pause()
"""


def test_open_files_within_the_bound_count_once_if_they_have_no_name(tmp_path: Path, few: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 2**20)
    # A process of its own: this one may hold any number of files of other tests.
    command = [sys.executable, "-I", "-S", "-c", HOLDS, str(few // 10)]
    with (
        path.open("rb") as file,
        subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder,
    ):
        assert holder.stdout is not None
        holder.stdout.readline()
        path.unlink()
        use = DiskUse()
        add_unnamed(use, [holder.pid] * 2, os.geteuid(), tmp_path.stat().st_dev)
        holder.kill()
    assert (use.files, use.size >> 20, use.exceeds(**PLENTY)) == (1, 1, "")


def test_a_missing_folder_has_no_size(tmp_path: Path) -> None:
    assert used(tmp_path / "missing") == DiskUse()
