"""A restore and ``down --purge`` get rid of whatever learners have left in the folders of an installation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.core.domain.errors import WeftError
from services.core.runtime.home import Home
from services.local.learner_folders import purge, remove_learners
from tests.testbed.deep_folders import make_deep

WORK = "node/j1/1/worker-0/job/work"


def installed(root: Path) -> Home:
    (root / WORK).mkdir(parents=True)
    (root / "VERSION").write_text("1")
    (root / "keys").mkdir()
    return Home(root)


def make_a_module_cache(work: Path) -> None:
    (work / "pkg/mod").mkdir(parents=True)
    (work / "pkg/mod/main.go").touch()
    (work / "pkg/mod").chmod(0o500)
    (work / "pkg").chmod(0o500)


def make_what_stays(work: Path) -> None:
    """As root only: a folder of another user."""
    os.seteuid(0)
    (work / "theirs").mkdir()
    (work / "theirs/file").touch()
    os.seteuid(work.stat().st_uid)


def test_purge_removes_read_only_folders_without_root(without_root: Path) -> None:
    home = installed(without_root / "home")
    make_a_module_cache(home / WORK)
    purge(home)
    assert not home.root.exists()


@pytest.mark.slow
def test_purge_removes_folders_that_lie_more_than_a_thousand_deep(tmp_path: Path) -> None:
    home = installed(tmp_path / "home")
    os.close(make_deep(home / WORK, "deeper", 1500))
    purge(home)
    assert not home.root.exists()


def test_purge_that_could_not_remove_all_is_repeated(without_root: Path) -> None:
    home = installed(without_root / "home")
    if os.getuid() == 0:
        make_what_stays(home / WORK)
        with pytest.raises(WeftError, match=f"{home.root}/node cannot be removed"):
            purge(home)
        assert [path.name for path in home.root.iterdir() if path.name != "node"] == ["VERSION"]
        os.seteuid(0)
    purge(home)
    assert not home.root.exists()


def test_restore_removes_read_only_folders_and_plain_files_without_root(without_root: Path) -> None:
    home = installed(without_root / "home")
    make_a_module_cache(home / WORK)
    (home / "node/file").touch()
    remove_learners(home)
    assert list((home / "node").iterdir()) == []


def test_restore_moves_what_it_cannot_remove_to_the_quarantine(without_root: Path) -> None:
    if os.getuid() != 0:
        return  # files of two users need root
    home = installed(without_root / "home")
    make_what_stays(home / WORK)
    remove_learners(home)
    remove_learners(home)  # a repeat leaves it there
    assert [path.name for path in (home / "node").iterdir()] == [".quarantine"]
    (place,) = (home / "node/.quarantine").iterdir()
    job, _, uid, _ = place.name.split(".")
    assert (job, int(uid)) == ("j1", os.geteuid())
