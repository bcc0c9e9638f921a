"""The objects of an attempt for helpers without access to the folder that is the object store.

The rights are those of signed URLs (``services.metrics.signing``), checked at each call. The bytes stream through this
service: with a store of its own (S3) the platform does without that hop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing

from services.core.domain.errors import InvalidRequest, NotFound
from services.core.domain.tokens import LearnerIdentity
from services.core.ports.object_store import ObjectStore
from services.core.ports.object_urls import ObjectRequest, Verb
from services.metrics.signing import Signing


class ObjectCalls:
    def __init__(self, signing: Signing, store: ObjectStore | None) -> None:
        """``store``: None where helpers use signed URLs or the folder itself."""
        self._signing, self._store = signing, store

    @property
    def are_served(self) -> bool:
        return self._store is not None

    async def size(self, learner: LearnerIdentity, key: str) -> int | None:
        """Bytes; None without such an object. Raises as ``Signing.authorize``, as all methods."""
        meta = await (await self._authorized(learner, "head", key)).head(key)
        return None if meta is None else meta.size

    async def get(self, learner: LearnerIdentity, key: str, start: int) -> AsyncGenerator[bytes]:
        """The bytes from offset ``start`` on. Raises NotFound."""
        store = await self._authorized(learner, "get", key)
        if await store.head(key) is None:
            raise NotFound(f"there is no object {key}")
        async for chunk in store.get(key, start=start):
            yield chunk

    async def put(self, learner: LearnerIdentity, key: str, chunks: AsyncGenerator[bytes], size: int | None) -> None:
        """Durable when it returns. Raises InvalidRequest if there are other than ``size`` bytes, NoSpace."""
        store = await self._authorized(learner, "put", key)
        async with aclosing(_of_size(chunks, size)) as checked:
            await store.put(key, checked, size=size)

    async def delete(self, learner: LearnerIdentity, key: str) -> None:
        """Removes the object, if there is one."""
        await (await self._authorized(learner, "delete", key)).delete(key)

    async def _authorized(self, learner: LearnerIdentity, verb: Verb, key: str) -> ObjectStore:
        if self._store is None:
            raise InvalidRequest("this platform's objects are moved by signed URLs, or within one machine")
        await self._signing.authorize(learner, [ObjectRequest(verb, key)])
        return self._store


async def _of_size(chunks: AsyncIterable[bytes], size: int | None) -> AsyncGenerator[bytes]:
    """A connection that breaks must not leave the first half of an object under its name."""
    count = 0
    async for chunk in chunks:
        count += len(chunk)
        yield chunk
    if size is not None and count != size:
        raise InvalidRequest(f"{count} bytes were sent of an object of {size}")
