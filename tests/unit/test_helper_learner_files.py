"""Listing a tree that a learner made: bounded, by descriptor, whatever is in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.helper import learner_files
from services.helper.learner_files import LearnerFile, SkippedFile, list_files, mostly_holes
from tests.testbed.deep_folders import make_deep
from tests.testbed.open_files import open_files

ROOT = Path(__file__).parents[2]
GIB = 2**30


def listed(root: Path) -> tuple[list[str], dict[str, str]]:
    """Names of files, and of skipped entries with the reason."""
    entries = list(list_files(root.parent, (root.name,), os.geteuid()))
    files = [entry.name for entry in entries if isinstance(entry, LearnerFile)]
    return files, {entry.name: entry.why for entry in entries if isinstance(entry, SkippedFile)}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "results"
    root.mkdir()
    return root


def test_files_are_listed_in_order_of_names_with_their_sizes(tree: Path) -> None:
    (tree / "b").write_text("12")
    (tree / "a").mkdir()
    (tree / "a" / "z").write_text("1")
    entries = list(list_files(tree.parent, ("results",), os.geteuid()))
    assert entries == [LearnerFile("a/z", "a/z", 1), LearnerFile("b", "b", 2)]


def test_missing_folder_has_no_files_and_a_link_to_a_folder_is_reported(tmp_path: Path) -> None:
    assert listed(tmp_path / "missing") == ([], {})
    (tmp_path / "results").symlink_to("/etc")
    files, skipped = listed(tmp_path / "results")
    assert files == []
    assert list(skipped) == ["."]


@pytest.mark.slow
def test_three_thousand_nested_folders_are_listed_to_a_limit(tree: Path) -> None:
    (tree / "fine").write_text("")
    os.close(make_deep(tree, "d", 3_000))
    files, skipped = listed(tree)
    subprocess.run(["rm", "-r", str(tree)], check=True)  # too deep for Python's own removal, which pytest uses
    assert files == ["fine"]
    ((name, why),) = skipped.items()
    assert name == "/".join(["d"] * 65)
    assert why == "more than 64 folders inside one another"
    assert open_files(tree.parent) == []


def test_more_entries_than_the_limit_are_reported(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_files, "MAX_ENTRIES", 50)
    for number in range(60):
        (tree / f"d{number:02}").mkdir()
    (tree / "d00" / "x").write_text("")
    files, skipped = listed(tree)
    assert files == []
    assert skipped == {"...": "there are more than 50 files and folders"}


def test_file_name_that_is_no_utf8_is_listed_under_an_escaped_name(tree: Path) -> None:
    Path(tree, os.fsdecode(b"caf\xe9\n")).write_text("x")
    ((entry),) = list_files(tree.parent, ("results",), os.geteuid())
    assert isinstance(entry, LearnerFile)
    assert entry.name == "caf\\xe9\\x0a"
    fd = learner_files.open_file(tree, (entry.path,), os.geteuid())
    os.close(fd)


def test_escaped_name_never_replaces_another_file(tree: Path) -> None:
    Path(tree, os.fsdecode(b"\xe9")).write_text("")
    (tree / "\\xe9").write_text("the real owner of the name")
    assert listed(tree) == (["\\xe9"], {"\\xe9": "its name can only be stored as another file's"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_file_of_another_user_is_skipped(tree: Path) -> None:
    (tree / "other").write_text("")
    os.chown(tree / "other", 70_001, 70_001)
    assert listed(tree) == ([], {"other": "it belongs to another user"})


def test_links_pipes_and_folders_that_cannot_be_read_are_skipped_with_their_reason(tree: Path) -> None:
    (tree / "link").symlink_to("/etc/passwd")
    os.mkfifo(tree / "pipe")
    entries = list(list_files(tree.parent, ("results",), os.geteuid()))
    assert entries == [
        SkippedFile("link", "it is a link", has_data=False),
        SkippedFile("pipe", "it is no plain file", has_data=False),
    ]


MOUNTED = """
import os, subprocess, sys
from pathlib import Path
from services.helper.learner_files import list_files
root = Path(sys.argv[1])
for folder in (root / "a b", root / "plain"):
    folder.mkdir()
    (folder / "inside").write_text("")
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(root / "a b")], check=True)
(root / "a b" / "hidden").write_text("")
print([entry.name for entry in list_files(root.parent, (root.name,), os.geteuid())])
"""


def test_file_system_that_is_mounted_inside_is_not_entered(tree: Path) -> None:
    """As a learner can with FUSE: its server may never answer."""
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run(
        [*namespace, "mount", "-t", "tmpfs", "tmpfs", str(tree)], capture_output=True, check=False
    ).returncode:
        pytest.skip("this machine does not allow to mount a file system")
    done = subprocess.run(
        [*namespace, sys.executable, "-c", MOUNTED, str(tree)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("['a b', 'plain/inside']", 0), done.stderr


@pytest.fixture
def sparse(tree: Path) -> Path:
    path = tree / "sparse"
    with path.open("wb") as file:
        file.truncate(20 * GIB)
    return path


def test_file_that_is_mostly_holes_is_skipped(tree: Path, sparse: Path) -> None:
    with sparse.open("r+b") as file:
        file.seek(5 * GIB)
        file.write(b"x")
    assert listed(tree) == ([], {"sparse": "it is mostly holes"})


def test_file_with_few_blocks_and_all_its_data_is_stored(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on ZFS and btrfs, where compressed or not yet written files have few blocks: they were lost."""
    path = tree / "weights"
    path.write_bytes(bytes(range(256)) * 4096)
    real = path.stat()
    fields = list(real)
    compressed = os.stat_result(fields[:10], {"st_blocks": 1, "st_size": real.st_size})
    assert compressed.st_blocks == 1
    monkeypatch.setattr(learner_files, "_HOLES", 1000)
    with path.open("rb") as file:
        assert not mostly_holes(file.fileno(), real.st_size)
    monkeypatch.setattr(os, "stat", lambda *_args, **_kwargs: compressed)
    assert listed(tree) == (["weights"], {})


def test_file_with_a_hole_and_much_data_is_stored(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_files, "_HOLES", 2**20)
    path = tree / "weights"
    with path.open("wb") as file:
        file.write(bytes(range(256)) * 8192)  # 2 MiB
        file.truncate(8 * 2**20)
    assert listed(tree) == (["weights"], {})
