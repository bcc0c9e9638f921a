"""Object transfer of a helper: in this machine's folder, or by URLs that the metrics service signs, one for each
operation on one object (docs/adr/0007-signed-urls.md), or from a pod through the metrics service, if the store is a
folder of another machine.

Temporary failures are waited for here, as long as the caller's ``wait`` does not raise: a store that is away, a folder
that cannot be read now, a metrics service that restarts, etcd without the current attempt for a moment. Errors that are
raised are permanent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from services.core.domain.checkpoint import checkpoint_base
from services.core.domain.errors import NotFound, PermissionDenied, Unavailable, WeftError
from services.core.ports.object_urls import ObjectRequest

# ruff: noqa: PLC0415 - a learner waits for all imports of its helper: one kind of store does not load the other's

if TYPE_CHECKING:
    from services.core.adapters.s3.transfer import RetryPolicy, Upload
    from services.core.runtime.learner_folder import Assignment
    from services.helper.metrics_client import IntakeClient
    from services.helper.spool import Spool

T = TypeVar("T")
_PAUSE_MOST_S: Final = 2.0
_UPLOAD_TRIES: Final = 3
"""Uploads of one object that may be removed by a sweep before it is given up."""

Wait = Callable[[float, str], Awaitable[None]]
"""Sleeps so many seconds; the text says what is waited for. It may raise to end the waiting."""


class Objects(Protocol):
    async def size(self, key: str) -> int | None:
        """Bytes; None without such an object."""
        ...

    def get(self, key: str) -> AsyncGenerator[bytes]:
        """Raises NotFound."""
        ...

    async def put(self, key: str, read: Callable[[], AsyncGenerator[bytes]], size: int | None = None) -> None:
        """Durable when this returns. ``read`` may be called again. With a size, an interrupted upload is continued,
        also by the next helper. Raises NoSpace and other permanent errors.
        """
        ...

    async def delete(self, key: str) -> None:
        """Removes an object of the learner's own checkpoints, if there is one. Raises PermissionDenied for another."""
        ...

    async def abandon(self) -> None:
        """Aborts an unfinished upload."""
        ...

    async def close(self, *, resumed: bool = False) -> None:
        """Aborts an unfinished upload, unless it will be ``resumed`` by others with the same spool."""
        ...


class UrlSigner:
    """Signs URLs over the helper's one connection to the metrics service, for any thread's event loop."""

    def __init__(self, *, in_pod: bool = False) -> None:
        """In the event loop of the connection, before it exists.

        ``in_pod``: the metrics service says whether it signs URLs or moves the objects itself.
        """
        self.in_pod = in_pod
        self._loop = asyncio.get_running_loop()
        self._intake: Future[IntakeClient] = Future()

    def use(self, intake: IntakeClient) -> None:
        """Sets the connection, once."""
        self._intake.set_result(intake)

    async def sign(self, request: ObjectRequest) -> str:
        """Waits for the connection. Raises Unavailable; StaleFence if a newer attempt is current."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._sign(request), self._loop))

    async def call(self, call: Callable[[IntakeClient], Awaitable[T]]) -> T:
        """Makes another call over the connection. Waits for the connection; raises as the call."""

        async def made() -> T:
            return await call(await asyncio.wrap_future(self._intake))

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(made(), self._loop))

    async def _sign(self, request: ObjectRequest) -> str:
        intake = await asyncio.wrap_future(self._intake)
        (url,) = await intake.sign([request])
        return url


def open_objects(assignment: Assignment, signer: UrlSigner, wait: Wait, spool: Spool | None = None) -> Objects:
    """The objects of the attempt. ``spool`` keeps the state of the upload under way."""
    folder = assignment.objects
    own = f"{own_checkpoints(assignment)}/"
    objects: Objects
    if folder:
        objects = FolderObjects(Path(folder), assignment.objects_keep_free, wait, deletable=own)
    else:
        objects = PodObjects(signer, wait, spool) if signer.in_pod else SignedObjects(signer, wait, spool)
    if "WEFT_FAILPOINTS" not in os.environ:
        return objects
    from services.core.failpoints.ports import at_failpoint  # never in production

    return at_failpoint(objects, "objects", "helper")


def own_checkpoints(assignment: Assignment) -> str:
    """The beginning of the keys of the learner's own checkpoints in its attempt."""
    plan = assignment.plan
    return checkpoint_base(tenant=plan.tenant, job=plan.job, attempt=plan.attempt, learner=assignment.learner.name)


class FolderObjects:
    def __init__(self, root: Path, keep_free: int, wait: Wait, *, deletable: str) -> None:
        """``deletable``: the beginning of the keys that may be removed."""
        from services.core.adapters.folder.objects import FolderObjectStore

        self._store = FolderObjectStore(root, keep_free=keep_free)
        self._wait = wait
        self._deletable = deletable

    async def size(self, key: str) -> int | None:
        meta = await _retried(lambda: self._store.head(key), self._wait)
        return None if meta is None else meta.size

    async def get(self, key: str) -> AsyncGenerator[bytes]:
        start = tries = 0
        while True:
            try:
                async for chunk in self._store.get(key, start=start):
                    start, tries = start + len(chunk), 0
                    yield chunk
            except Unavailable as error:
                tries += 1
                await self._wait(_pause_s(tries), error.message)
            else:
                return

    async def put(self, key: str, read: Callable[[], AsyncGenerator[bytes]], size: int | None = None) -> None:
        async def put() -> None:
            async with aclosing(read()) as chunks:
                await self._store.put(key, chunks, size=size)

        await _retried(put, self._wait)

    async def delete(self, key: str) -> None:
        if not key.startswith(self._deletable):
            raise PermissionDenied("a learner's helper removes its own checkpoints only")
        await _retried(lambda: self._store.delete(key), self._wait)

    async def abandon(self) -> None:
        pass

    async def close(self, *, resumed: bool = False) -> None:
        pass


class SignedObjects:
    def __init__(self, signer: UrlSigner, wait: Wait, spool: Spool | None) -> None:
        from services.core.adapters.s3.transfer import Transfer

        self._transfer = Transfer(signer.sign, retry_policy=_retry_policy(wait))
        self._spool = spool

    async def size(self, key: str) -> int | None:
        response = await self._transfer.head(key)
        return None if response is None else int(response.headers.get("content-length", -1))

    async def get(self, key: str) -> AsyncGenerator[bytes]:
        async with aclosing(self._transfer.get(key)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def put(self, key: str, read: Callable[[], AsyncGenerator[bytes]], size: int | None = None) -> None:
        from services.core.adapters.s3.answers import UploadGone
        from services.core.adapters.s3.transfer import PART_BYTES

        progress = None
        if self._spool is not None and size is not None and size > PART_BYTES:
            await self._abort_upload(except_of=key)
            progress = _SpooledProgress(self._spool, key)
        for tries_left in reversed(range(_UPLOAD_TRIES)):
            try:
                async with aclosing(read()) as chunks:
                    await self._transfer.put(key, chunks, size=size, progress=progress)
            except UploadGone:  # a sweep has removed it: again from the start
                if not tries_left:
                    raise
            else:
                return

    async def delete(self, key: str) -> None:
        with contextlib.suppress(NotFound):
            await self._transfer.call(ObjectRequest("delete", key))

    async def abandon(self) -> None:
        with contextlib.suppress(WeftError):
            await self._abort_upload()

    async def close(self, *, resumed: bool = False) -> None:
        if not resumed:
            await self.abandon()
        self._transfer.close()

    async def _abort_upload(self, except_of: str = "") -> None:
        """Aborts the unfinished upload in the spool, unless it is of the key ``except_of``."""
        upload = self._spool.upload() if self._spool is not None else None
        if self._spool is None or upload is None or upload["key"] == except_of:
            return
        await self._transfer.abort(ObjectRequest("abort", upload["key"], upload["id"]))
        self._spool.save_upload(None)


class PodObjects:
    """Signed URLs or calls, as the metrics service says."""

    def __init__(self, signer: UrlSigner, wait: Wait, spool: Spool | None) -> None:
        self._signer, self._wait, self._spool = signer, wait, spool
        self._chosen: Objects | None = None

    async def size(self, key: str) -> int | None:
        return await (await self._objects()).size(key)

    async def get(self, key: str) -> AsyncGenerator[bytes]:
        async with aclosing((await self._objects()).get(key)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def put(self, key: str, read: Callable[[], AsyncGenerator[bytes]], size: int | None = None) -> None:
        await (await self._objects()).put(key, read, size)

    async def delete(self, key: str) -> None:
        await (await self._objects()).delete(key)

    async def abandon(self) -> None:
        if self._chosen is not None:
            await self._chosen.abandon()

    async def close(self, *, resumed: bool = False) -> None:
        if self._chosen is not None:
            await self._chosen.close(resumed=resumed)

    async def _objects(self) -> Objects:
        if self._chosen is None:
            calls = await _retried(lambda: self._signer.call(lambda intake: intake.object_calls()), self._wait)
            chosen = CalledObjects(self._signer, self._wait) if calls else None
            self._chosen = chosen or SignedObjects(self._signer, self._wait, self._spool)
        return self._chosen


class CalledObjects:
    """Objects that stream through the metrics service."""

    def __init__(self, signer: UrlSigner, wait: Wait) -> None:
        self._signer, self._wait = signer, wait

    async def size(self, key: str) -> int | None:
        return await _retried(lambda: self._signer.call(lambda intake: intake.object_size(key)), self._wait)

    async def get(self, key: str) -> AsyncGenerator[bytes]:
        start = tries = 0
        while True:
            stream = _Stream(self._signer, key, start)
            try:
                while chunk := await stream.read():
                    start, tries = start + len(chunk), 0
                    yield chunk
            except Unavailable as error:
                tries += 1
                await self._wait(_pause_s(tries), error.message)
            else:
                return
            finally:
                await stream.close()

    async def put(self, key: str, read: Callable[[], AsyncGenerator[bytes]], size: int | None = None) -> None:
        """In the event loop of the connection."""

        async def put(intake: IntakeClient) -> None:
            failed: list[Exception] = []

            async def chunks() -> AsyncGenerator[bytes]:
                try:
                    async with aclosing(read()) as opened:
                        async for chunk in opened:
                            yield chunk
                except Exception as error:
                    failed.append(error)
                    raise

            try:
                async with aclosing(chunks()) as opened:
                    await intake.put_object(key, opened, size)
            except BaseException:
                if failed:  # gRPC cancels its call where the stream of requests fails
                    raise failed[0] from None
                raise

        await _retried(lambda: self._signer.call(put), self._wait)

    async def delete(self, key: str) -> None:
        await _retried(lambda: self._signer.call(lambda intake: intake.delete_object(key)), self._wait)

    async def abandon(self) -> None:
        pass

    async def close(self, *, resumed: bool = False) -> None:
        pass


class _Stream:
    """The bytes of an object, read by the event loop of the connection for another one."""

    def __init__(self, signer: UrlSigner, key: str, start: int) -> None:
        self._signer, self._key, self._start = signer, key, start
        self._chunks: AsyncGenerator[bytes] | None = None

    async def read(self) -> bytes:
        """The next bytes; empty at the end."""

        async def read(intake: IntakeClient) -> bytes:
            self._chunks = self._chunks or intake.get_object(self._key, self._start)
            return await anext(self._chunks, b"")

        return await self._signer.call(read)

    async def close(self) -> None:
        async def close(_: IntakeClient) -> None:
            if self._chunks is not None:
                await self._chunks.aclose()

        await self._signer.call(close)


async def _retried(call: Callable[[], Awaitable[T]], wait: Wait) -> T:
    """Repeats a call while the service does not answer."""
    tries = 0
    while True:
        try:
            return await call()
        except Unavailable as error:
            tries += 1
            await wait(_pause_s(tries), error.message)


def _pause_s(tries: int) -> float:
    return min(_PAUSE_MOST_S, 0.05 * 2.0 ** min(tries, 10))


class _SpooledProgress:
    """``Progress`` of one object's upload, kept in the spool."""

    def __init__(self, spool: Spool, key: str) -> None:
        self._spool = spool
        self._key = key

    def load(self) -> Upload | None:
        from services.core.adapters.s3.transfer import Upload

        upload = self._spool.upload()
        if upload is None or upload["key"] != self._key:
            return None
        return Upload(upload["id"], upload["size"], list(upload["etags"]), list(upload.get("digests", ())))

    def save(self, upload: Upload) -> None:
        parts = {"etags": upload.etags, "digests": upload.digests}
        self._spool.save_upload({"key": self._key, "id": upload.id, "size": upload.size, **parts})

    def forget(self) -> None:
        self._spool.save_upload(None)


def _retry_policy(wait: Wait) -> RetryPolicy:
    async def pause(error: Unavailable, tries: int, since: float) -> None:  # noqa: ARG001
        await wait(_pause_s(tries), error.message)

    return pause
