"""Two downloads of one job into one folder: each file is whole, and the second download says why it ends."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.scripted_http import Answer, Request, json_answer, scripted
from weft import Client, Conflict
from weft._part_file import locked_part

CONTENT = bytes(range(256)) * 8000


def answer(request: Request, _n: int) -> Answer:
    if request.path.partition("?")[0].endswith("/artifacts"):
        path = "attempts/1/results/worker-0/model.bin"
        listed = {"path": path, "size": len(CONTENT), "etag": "v1", "modified": "2026-11-21T13:20:00Z"}
        return json_answer({"artifacts": [listed], "next": None})
    start = int(request.headers.get("range", "").removeprefix("bytes=").rstrip("-") or 0)
    return Answer(206 if start else 200, CONTENT[start:], {"ETag": '"v1"'})


def download(folder: Path, in_the_middle: Callable[[Callable[[], Any]], None]) -> Path:
    """``in_the_middle`` is called once, with a second download, after the first bytes."""
    with (
        scripted(answer) as server,
        Client(server.url, "weft_k_s") as client,
        Client(server.url, "weft_k_s") as other,
    ):
        called = False

        def on_bytes(_done: int, _all: int) -> None:
            nonlocal called
            if not called:
                called = True
                in_the_middle(lambda: other.jobs.download("j1", folder))

        [path] = client.jobs.download("j1", folder, on_bytes=on_bytes)
    return path


def test_a_second_download_into_the_same_folder_is_refused_and_the_first_one_is_whole(tmp_path: Path) -> None:
    """Both wrote to one file, and one of them reported success with bytes of both in it."""

    def refused(second: Callable[[], Any]) -> None:
        with pytest.raises(Conflict, match=r"another download is writing .*model\.bin; wait for its end"):
            second()

    path = download(tmp_path, refused)
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["model.bin"]


def test_where_files_have_no_locks_a_download_whose_file_another_one_wrote_does_not_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(_file: object, _operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(Conflict, match="another download is writing"):
        download(tmp_path, lambda second: second())


def test_a_download_that_begins_while_another_one_ends_does_not_write_to_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, target = tmp_path / ".model.weft-part", tmp_path / "model"
    part.write_bytes(CONTENT)
    lock = fcntl.flock

    def once_the_other_one_has_ended(file: Any, operation: int) -> None:
        if not target.exists():
            part.replace(target)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", once_the_other_one_has_ended)
    with locked_part(part, target) as file:
        file.write(b"more")
    assert (part.read_bytes(), target.read_bytes()) == (b"more", CONTENT)
