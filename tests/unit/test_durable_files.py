"""Durable JSON files, and the back-off between retries."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.core.domain.errors import NoSpace
from services.core.runtime.durable_files import read_json, reserve, write_json, write_reserved
from services.core.runtime.retry import Backoff


@pytest.mark.parametrize("durable", [True, False])
def test_a_written_document_is_read_back_with_its_schema(tmp_path: Path, *, durable: bool) -> None:
    path = tmp_path / "document.json"
    write_json(path, {"a": 1}, durable=durable)
    write_json(path, {"a": 2}, durable=durable, mode=0o644)
    assert read_json(path) == {"schema": 1, "a": 2}
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_file_reads_as_none_and_other_content_as_an_error(tmp_path: Path) -> None:
    assert read_json(tmp_path / "missing") is None
    (tmp_path / "list").write_text("[1, 2]")
    with pytest.raises((TypeError, ValueError)):
        read_json(tmp_path / "list")


def test_a_write_that_finds_no_space_leaves_the_old_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "document.json"
    write_json(path, {"a": 1})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoSpace, match=r"document\.json"):
        write_json(path, {"a": 2})
    assert read_json(path) == {"schema": 1, "a": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "rename"])
@pytest.mark.parametrize("write", [write_json, write_reserved])
def test_a_file_system_that_copies_on_write_may_find_no_space_for_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, dict[str, Any]], None], step: str
) -> None:
    path = tmp_path / "stop.json"
    reserve(path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        for name in {"fsync": ["fsync"], "rename": ["rename", "replace"]}[step]:
            patch.setattr(os, name, full)
        with pytest.raises(NoSpace, match=r"stop\.json"):
            write(path, {"cause": "kill"})
    assert not path.exists()
    write_reserved(path, {"cause": "kill"})
    assert read_json(path) == {"schema": 1, "cause": "kill"}


def test_a_reserved_write_allocates_no_new_blocks(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    reserve(path)
    before = path.with_name(".exit.json.reserved").stat()
    document: dict[str, Any] = {"code": 3}
    write_reserved(path, document)
    assert (path.stat().st_ino, path.stat().st_blocks) == (before.st_ino, before.st_blocks)
    assert read_json(path) == {"schema": 1, "code": 3}
    write_reserved(path, {"code": 4})  # no space is reserved any more: a plain write
    assert read_json(path) == {"schema": 1, "code": 4}


def test_pauses_double_up_to_the_maximum_and_start_again_after_a_reset() -> None:
    backoff = Backoff(first_s=1, most_s=4)
    for most in (1, 2, 4, 4):
        assert most / 2 <= backoff.next() <= most
    backoff.reset()
    assert backoff.next() <= 1
