"""Transfers objects by signed URLs: of helpers, whose URLs a service signs, and of services, which sign their own.

An object is visible whole or not at all: small ones are sent in one request, larger ones in parts, which become visible
when the upload is completed. At most two parts are in memory. Each request may be repeated: the object itself shows
whether a request without an answer took effect. A failed upload is aborted, unless its owner keeps its ``Progress`` to
resume it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from html import escape
from typing import Final, Protocol, TypeAlias

from services.core.adapters.s3.answers import Answer, InTheWay, Refused, UploadGone, raise_for
from services.core.adapters.s3.wire import Wire
from services.core.domain.errors import Duplicate, NotFound, Unavailable, WeftError
from services.core.ports.object_urls import ObjectRequest

Sign: TypeAlias = Callable[[ObjectRequest], Awaitable[str]]
RetryPolicy: TypeAlias = Callable[[Unavailable, int, float], Awaitable[None]]
"""Called after each failure that may pass, with (the error, the number of failures, their first time in monotonic
seconds): waits before the next try, or raises the error."""

PART_BYTES: Final = 8 * 2**20
_PARTS: Final = 9_500
"""Parts of an upload, of the 10,000 that S3 allows."""
_GROWS_EVERY: Final = 1_000
"""If the size is not known, the size of parts doubles after this many: 8 GiB, 24 GiB, ..."""
_COMPLETE_S: Final = 300.0
"""Completing copies all parts on some servers."""
_ABORT_S: Final = 10.0
_ABORTS: Final = 4
_RETRY_FOR_S: Final = 2.0
_IN_THE_WAY_TRIES: Final = 8
"""InTheWay is raised after this many tries, because it may pass."""


class PerhapsOurs(Duplicate):
    """The object exists; an earlier try without an answer may have written it."""


@dataclass(slots=True)
class Upload:
    """An unfinished upload."""

    id: str
    size: int
    """Bytes of the whole object."""
    etags: list[str] = field(default_factory=list)
    """ETags of the stored parts, from the first."""
    digests: list[str] = field(default_factory=list)
    """MD5 of the same parts: a server that encrypts answers other ETags."""


class Progress(Protocol):
    """Keeps the state of an upload of one object of known size."""

    def load(self) -> Upload | None: ...

    def save(self, upload: Upload) -> None: ...

    def forget(self) -> None: ...


async def briefly(trouble: Unavailable, tries: int, since: float) -> None:
    """The retry policy of services: short, because a caller waits and will retry."""
    if isinstance(trouble, Refused) or time.monotonic() - since > _RETRY_FOR_S:
        raise trouble
    await asyncio.sleep(min(0.5, 0.05 * 2**tries))


class Transfer:
    """One transfer at a time. The caller must ``close`` it."""

    def __init__(self, sign: Sign, *, retry_policy: RetryPolicy = briefly, wire: Wire | None = None) -> None:
        self._sign = sign
        self._retry_policy = retry_policy
        self._wire = wire or Wire()

    async def put(
        self,
        key: str,
        chunks: AsyncIterable[bytes],
        *,
        create_only: bool = False,
        size: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """As ``ObjectStore.put``. Raises UploadGone if the upload in ``progress`` is gone; then call ``put`` again."""
        async with aclosing(_parts(chunks, size)) as parts:
            first, whole = await anext(parts)
            if whole:
                await self._put_one(key, first, create_only=create_only)
                return
            upload = _PartsUpload(self, key, create_only=create_only, size=size, progress=progress)
            await upload.put(first, parts)

    async def head(self, key: str) -> Answer | None:
        try:
            answer, _ = await self.call(ObjectRequest("head", key))
        except NotFound:
            return None
        return answer

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes]:
        """As ``ObjectStore.get``, for ranges within the object; resumes after an interruption."""
        place, tries, since = start, 0, time.monotonic()
        while True:
            request = ObjectRequest("get", key)
            try:
                url = await self._sign(request)
                async with aclosing(self._wire.stream(url, key, start=place, end=end)) as chunks:
                    async for chunk in chunks:
                        place += len(chunk)
                        yield chunk
                        tries, since = 0, time.monotonic()
            except Unavailable as trouble:
                tries += 1
                await self._retry_policy(trouble, tries, since)
            else:
                return

    async def call(
        self,
        request: ObjectRequest,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        within_s: float | None = None,
    ) -> tuple[Answer, int]:
        """Returns the answer and the number of earlier tries with an unknown outcome."""
        tries, in_the_way, since = 0, 0, time.monotonic()
        while True:
            try:
                url = await self._sign(request)
                answer = await self._wire.send(request.method, url, body, headers, within_s=within_s)
                raise_for(answer, request.key)
            except UploadGone:
                raise
            except Unavailable as trouble:
                tries += 1
                await self._retry_policy(trouble, tries, since)
            except InTheWay:
                in_the_way += 1
                if in_the_way >= _IN_THE_WAY_TRIES:
                    raise
                await asyncio.sleep(0.005 * in_the_way)
            except Duplicate as duplicate:
                if tries:
                    raise PerhapsOurs(duplicate.message) from None
                raise
            else:
                return answer, tries

    async def _put_one(self, key: str, data: bytes, *, create_only: bool) -> None:
        digest = hashlib.md5(data, usedforsecurity=False)
        headers = {"Content-MD5": base64.b64encode(digest.digest()).decode(), **_condition(create_only=create_only)}
        try:
            await self.call(ObjectRequest("put", key), data, headers)
        except PerhapsOurs:
            if not await self.has(key, digest.hexdigest()):
                raise

    async def has(self, key: str, etag: str) -> bool:
        stored = await self.head(key)
        return stored is not None and stored.etag == etag

    async def abort(self, request: ObjectRequest) -> None:
        """Aborts the upload on a connection of its own, within seconds: the store may be away; ``sweep`` follows.

        Repeats until the upload is gone: a part in flight may keep it alive.
        """
        wire = Wire(answer_s=_ABORT_S)
        try:
            with contextlib.suppress(WeftError, TimeoutError):
                async with asyncio.timeout(_ABORT_S):
                    for again in range(_ABORTS):
                        await asyncio.sleep(0.05 * again)
                        answer = await wire.send(request.method, await self._sign(request))
                        if answer.status == 404:
                            return
        finally:
            wire.close()

    def close(self) -> None:
        self._wire.close()


class _PartsUpload:
    """Writes an object in parts."""

    def __init__(
        self, transfer: Transfer, key: str, *, create_only: bool, size: int | None, progress: Progress | None
    ) -> None:
        self._transfer = transfer
        self._key = key
        self._create_only = create_only
        self._size = size
        self._progress = progress
        self._digests = hashlib.md5(usedforsecurity=False)

    async def put(self, first: bytes, rest: AsyncIterator[tuple[bytes, bool]]) -> None:
        upload = await self._begun()
        total = len(first)
        async with contextlib.AsyncExitStack() as on_failure:
            if self._progress is None:
                on_failure.push_async_callback(self._transfer.abort, ObjectRequest("abort", self._key, upload.id))
            try:
                await self._part(upload, 1, first)
                number = 1
                async for data, _ in rest:
                    number, total = number + 1, total + len(data)
                    await self._part(upload, number, data)
                await self._completed(upload, total)
            except UploadGone:
                on_failure.pop_all()
                self._forget()
                raise
            on_failure.pop_all()

    async def _begun(self) -> Upload:
        if self._progress is not None:
            known = self._progress.load()
            if known is not None and known.size == self._size:
                return known
            if known is not None:
                await self._transfer.abort(ObjectRequest("abort", self._key, known.id))
        answer, _ = await self._transfer.call(ObjectRequest("begin", self._key))
        upload = Upload(answer.element("UploadId"), self._size or 0)
        self._save(upload)
        return upload

    async def _part(self, upload: Upload, number: int, data: bytes) -> None:
        """Sends the part unless it was sent before an interruption, with these bytes: the file may have changed."""
        hashing = hashlib.md5(data, usedforsecurity=False)
        digest = hashing.digest()
        self._digests.update(digest)
        if number <= len(upload.etags):
            if upload.digests[number - 1 : number] == [hashing.hexdigest()]:
                return
            del upload.etags[number - 1 :], upload.digests[number - 1 :]
            self._save(upload)
        request = ObjectRequest("part", self._key, upload.id, number)
        answer, _ = await self._transfer.call(request, data, {"Content-MD5": base64.b64encode(digest).decode()})
        upload.etags.append(answer.etag)
        upload.digests.append(hashing.hexdigest())
        self._save(upload)

    async def _completed(self, upload: Upload, total: int) -> None:
        parts = "".join(
            f'<Part><PartNumber>{number}</PartNumber><ETag>"{escape(etag)}"</ETag></Part>'
            for number, etag in enumerate(upload.etags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        etag = f"{self._digests.hexdigest()}-{len(upload.etags)}"
        request, condition = ObjectRequest("complete", self._key, upload.id), _condition(create_only=self._create_only)
        try:
            await self._transfer.call(request, body, condition, within_s=_COMPLETE_S)
        except UploadGone:
            # Completed by an earlier try whose answer was lost, or swept.
            stored = await self._transfer.head(self._key)
            if stored is None or stored.headers.get("content-length") != str(total):
                raise
            if stored.etag != etag:  # an earlier object of this size
                if self._create_only:
                    raise Duplicate(f"there is an object {self._key}") from None
                raise
        except PerhapsOurs:
            if not await self._transfer.has(self._key, etag):
                raise
        self._forget()

    def _save(self, upload: Upload) -> None:
        if self._progress is not None:
            self._progress.save(upload)

    def _forget(self) -> None:
        if self._progress is not None:
            self._progress.forget()


def _condition(*, create_only: bool) -> dict[str, str]:
    return {"If-None-Match": "*"} if create_only else {}


def part_bytes(number: int, size: int | None) -> int:
    """Bytes of the part with this number (from 1). Depends on ``size`` only: a resumed upload has the same parts."""
    if size is None:
        return PART_BYTES << ((number - 1) // _GROWS_EVERY)
    return PART_BYTES * max(1, -(-size // (PART_BYTES * _PARTS)))


async def _parts(chunks: AsyncIterable[bytes], size: int | None) -> AsyncGenerator[tuple[bytes, bool]]:
    """Splits the stream into (part, whether it is the last). Yields at least one part, which may be empty."""
    buffer, number = bytearray(), 1
    async for chunk in chunks:
        buffer += chunk
        while len(buffer) > part_bytes(number, size):  # not '>=': the last part must be recognised
            length = part_bytes(number, size)
            part = bytes(memoryview(buffer)[:length])
            del buffer[:length]
            yield part, False
            number += 1
    yield bytes(buffer), True
