"""Output of `weft backup`, `restore` and `master-key`, as text and as JSON."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from services.local.backup import saving
from tests.testbed.filled_stores import contents, fill, with_stores
from weft._cli.main import run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A platform with some of everything in it, which is the operator's."""
    with_stores(tmp_path / "home", {}, lambda stores: fill(stores, files=(10,)), writing=True)
    monkeypatch.setenv("WEFT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def weft_output(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    """What a command prints on stdout and on stderr, words unbroken."""
    assert run(list(words)) == code
    out, err = capsys.readouterr()
    return out, " ".join(err.split())


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(weft_output(capsys, *words, "-o", "json")[0])


def test_backup_prints_its_content_and_its_key(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = weft_output(capsys, "backup", "b")
    assert "5 jobs" in out
    assert "3 secrets" not in out, "the first administrator's key is one of them"
    assert "4 secrets" in out
    assert "need" in out
    assert "b.key" in out
    assert "nothing else does: keep it in another place" in err
    again = document(capsys, "backup", "b2", "--key", "b.key")
    assert again["key"].endswith("b.key")
    assert again["key_made"] is False
    assert again["counts"]["jobs"] == 5
    assert home.is_dir()


def test_backup_that_is_interrupted_once_it_is_whole_keeps_its_key(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(folder: Path) -> None:
        raise OSError(errno.EIO, "interrupted")

    with monkeypatch.context() as patched:
        patched.setattr(saving, "sync_folder", interrupted)
        assert run(["backup", "b"]) != 0
    capsys.readouterr()
    assert document(capsys, "backup", "--verify", "b")["authentic"] is True
    assert home.is_dir()


@pytest.mark.parametrize("words", [("backup", "--verify", "b"), ("restore", "b", "--dry-run")], ids=" ".join)
def test_restore_dry_run_shows_the_content_and_changes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    weft_output(capsys, "backup", "b")
    before = with_stores(home, {}, contents, writing=False)
    out, _ = weft_output(capsys, *words)
    assert "whole" in out
    assert "by weft" in out
    assert document(capsys, *words)["authentic"] is True
    assert with_stores(home, {}, contents, writing=False) == before


def test_restore_prints_the_next_steps(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weft_output(capsys, "backup", "b")
    out, err = weft_output(capsys, "restore", "b", "--home", "other")
    assert "weft up" in out
    assert f"2 jobs wait and will run after `weft up --home {home.parent / 'other'}`" in err
    _, err = weft_output(capsys, "restore", "b", "--home", "third", "--halted")
    assert "2 halted; `weft resume` continues them" in err
    assert len(document(capsys, "restore", "b", "--home", "fourth")["again"]) == 2
    assert home.is_dir()


def test_backup_errors_are_one_line_with_what_to_do(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weft_output(capsys, "backup", "b")
    _, err = weft_output(capsys, "restore", "b", code=5)
    assert "is not empty" in err
    assert "--replace" in err
    _, err = weft_output(capsys, "backup", "b", code=5)
    assert "exists already" in err
    _, err = weft_output(capsys, "restore", "nothing", "--home", "other", code=2)
    assert "there is no backup" in err
    _, err = weft_output(capsys, "backup", "c", "--passphrase", code=2)
    assert "WEFT_BACKUP_PASSPHRASE" in err
    _, err = weft_output(capsys, "master-key", "--rotate", "--retire", code=2)
    assert "first --rotate" in err
    assert home.is_dir()


def test_a_passphrase_comes_from_the_environment_in_scripts(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_BACKUP_PASSPHRASE", "right horse")
    out, err = weft_output(capsys, "backup", "b")
    assert "the passphrase" in out
    assert err == ""
    assert document(capsys, "restore", "b", "--home", "other")["counts"]["jobs"] == 5
    assert not Path("b.key").exists()
    assert home.is_dir()


def test_master_key_is_shown_by_its_id_only(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = (home / "secrets" / "master-key").read_text().split("weftmk1_")[1].strip()
    before = document(capsys, "master-key")
    out, _ = weft_output(capsys, "master-key", "--rotate")
    assert "3 secrets wrapped anew" in out
    after = document(capsys, "master-key", "--retire")
    assert after["retired"] == [before["current"]]
    assert secret not in json.dumps([before, after]) + out
