"""Uploads whose caller is cancelled, as by a gRPC client that gives up, while a thread works with their file."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from services.api.uploads import Uploads
from services.core.formats.archive import Entry
from tests.waiting import HANG_S, until


async def test_an_upload_that_is_cancelled_keeps_its_tenants_turn_until_its_check_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, checking, ended = threading.Event(), list[bytes](), list[bytes]()

    def inspect(file: BinaryIO) -> tuple[Entry, ...]:
        content = os.pread(file.fileno(), 6, 0)
        checking.append(content)
        if content == b"first":
            go_on.wait(HANG_S)
        ended.append(os.pread(file.fileno(), 6, 0))  # the file is still open
        return ()

    monkeypatch.setattr("services.api.uploads.archive.inspect", inspect)
    uploads = Uploads(tmp_path / "uploads", max_bytes=100, most=2, most_of_tenant=2)
    uploads.open()

    async def upload(content: bytes) -> None:
        async with uploads.receive("acme") as upload:
            await upload.write(content)
            await upload.finish()

    first = asyncio.create_task(upload(b"first"))
    try:
        await until(lambda: checking == [b"first"])
        first.cancel()
        second = asyncio.create_task(upload(b"second"))
        for _ in range(100):  # turns of the loop: without the wait for its thread it has ended after a few
            await asyncio.sleep(0)
        assert (first.done(), checking) == (False, [b"first"])
    finally:
        go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert ended == [b"first", b"second"]
    assert uploads.running == 0
    uploads.close()


async def test_an_upload_that_is_cancelled_before_its_file_is_made_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, making = threading.Event(), threading.Event()
    make = tempfile.mkstemp

    def slow(*, dir: Path) -> tuple[int, str]:  # noqa: A002 - its name
        making.set()
        go_on.wait(HANG_S)
        return make(dir=dir)

    monkeypatch.setattr("services.api.uploads.tempfile.mkstemp", slow)
    uploads = Uploads(tmp_path / "uploads", max_bytes=100, most=1, most_of_tenant=1)
    uploads.open()

    async def receive() -> None:
        async with uploads.receive("acme"):
            raise AssertionError("it was cancelled before")

    receiving = asyncio.create_task(receive())
    await until(making.is_set)
    receiving.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert list((tmp_path / "uploads").iterdir()) == []
    uploads.close()
