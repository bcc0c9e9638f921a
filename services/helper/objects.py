"""The platform's objects as a helper moves them: in the folder of this machine, or by URLs that the metrics service
signs, one for each thing to do to one object (docs/adr/0007-signed-urls.md).

What may pass is waited for here, for as long as the caller waits: a store that is away, a metrics service that
restarts, etcd that has not been told again which attempt is current. What is raised will not get better.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from services.core.domain.errors import Unavailable, WeftError
from services.core.ports.object_urls import ObjectRequest

# ruff: noqa: PLC0415 - a learner waits for whatever its helper imports: the one kind of store does without the other's

if TYPE_CHECKING:
    from services.core.adapters.s3.transfer import RetryPolicy, Upload
    from services.helper.folder import Assignment
    from services.helper.metrics_client import Intake
    from services.helper.spool import Spool

_WAIT_MOST_S: Final = 2.0
_AGAIN: Final = 3
"""Uploads of one object that may vanish under us."""


class Objects(Protocol):
    async def size(self, key: str) -> int | None:
        """Bytes; None where there is none."""
        ...

    def get(self, key: str) -> AsyncGenerator[bytes]:
        """NotFound."""
        ...

    async def put(self, key: str, read: Callable[[], AsyncGenerator[bytes]], size: int | None = None) -> None:
        """Durable when this returns. ``read`` may be called again. With a size, an upload that was cut is gone on with,
        also by the next helper. NoSpace, and whatever else will not get better.
        """
        ...

    async def close(self) -> None:
        """Whatever is half done is taken back: nobody goes on with it."""
        ...


class Urls:
    """Asks for URLs over the helper's one conversation with the metrics service, from any thread's loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._intake: Future[Intake] = Future()

    def asked_of(self, intake: Intake) -> None:
        self._intake.set_result(intake)

    async def sign(self, request: ObjectRequest) -> str:
        """Unavailable; StaleFence where a newer attempt has taken ours' place."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._ask(request), self._loop))

    async def _ask(self, request: ObjectRequest) -> str:
        intake = await asyncio.wrap_future(self._intake)
        (url,) = await intake.sign([request])
        return url


def objects_of(
    assignment: Assignment, urls: Urls, wait: Callable[[float, str], Awaitable[None]], spool: Spool | None = None
) -> Objects:
    """Those of the attempt. ``wait``: so many seconds, and for what. ``spool``: remembers the upload under way."""
    here = assignment.objects
    objects: Objects = FolderObjects(Path(here)) if here else SignedObjects(urls, wait, spool)
    if "WEFT_FAILPOINTS" not in os.environ:
        return objects
    from services.core.failpoints.ports import at_failpoint  # never in production

    return at_failpoint(objects, "objects", "helper")


class FolderObjects:
    def __init__(self, root: Path) -> None:
        from services.core.adapters.folder.objects import FolderObjectStore

        self._store = FolderObjectStore(root)

    async def size(self, key: str) -> int | None:
        there = await self._store.head(key)
        return None if there is None else there.size

    async def get(self, key: str) -> AsyncGenerator[bytes]:
        async for chunk in self._store.get(key):
            yield chunk

    async def put(self, key: str, read: Callable[[], AsyncGenerator[bytes]], size: int | None = None) -> None:
        async with aclosing(read()) as chunks:
            await self._store.put(key, chunks, size=size)

    async def close(self) -> None:
        pass


class SignedObjects:
    def __init__(self, urls: Urls, wait: Callable[[float, str], Awaitable[None]], spool: Spool | None) -> None:
        from services.core.adapters.s3.transfer import Transfer

        self._transfer = Transfer(urls.sign, retry_policy=_patience(wait))
        self._spool = spool

    async def size(self, key: str) -> int | None:
        there = await self._transfer.head(key)
        return None if there is None else int(there.headers.get("content-length", -1))

    async def get(self, key: str) -> AsyncGenerator[bytes]:
        async with aclosing(self._transfer.get(key)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def put(self, key: str, read: Callable[[], AsyncGenerator[bytes]], size: int | None = None) -> None:
        from services.core.adapters.s3.answers import UploadGone
        from services.core.adapters.s3.transfer import PART_BYTES

        kept = None
        if self._spool is not None and size is not None and size > PART_BYTES:
            await self._take_back(except_of=key)
            kept = _Kept(self._spool, key)
        for left in reversed(range(_AGAIN)):
            try:
                async with aclosing(read()) as chunks:
                    await self._transfer.put(key, chunks, size=size, progress=kept)
            except UploadGone:  # somebody has swept it: from the start
                if not left:
                    raise
            else:
                return

    async def close(self) -> None:
        with contextlib.suppress(WeftError):
            await self._take_back()
        self._transfer.close()

    async def _take_back(self, except_of: str = "") -> None:
        """Aborts the upload of another file, which could not be stored."""
        found = self._spool.upload() if self._spool is not None else None
        if self._spool is None or found is None or found["key"] == except_of:
            return
        await self._transfer.abort(ObjectRequest("abort", found["key"], found["id"]))
        self._spool.save_upload(None)


class _Kept:
    """``Progress`` of one object's upload, in the spool."""

    def __init__(self, spool: Spool, key: str) -> None:
        self._spool = spool
        self._key = key

    def load(self) -> Upload | None:
        from services.core.adapters.s3.transfer import Upload

        found = self._spool.upload()
        if found is None or found["key"] != self._key:
            return None
        return Upload(found["id"], found["size"], list(found["etags"]))

    def save(self, upload: Upload) -> None:
        self._spool.save_upload({"key": self._key, "id": upload.id, "size": upload.size, "etags": upload.etags})

    def forget(self) -> None:
        self._spool.save_upload(None)


def _patience(wait: Callable[[float, str], Awaitable[None]]) -> RetryPolicy:
    async def patiently(trouble: Unavailable, tries: int, since: float) -> None:  # noqa: ARG001
        await wait(min(_WAIT_MOST_S, 0.05 * 2 ** min(tries, 10)), trouble.message)

    return patiently
