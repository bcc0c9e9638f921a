"""The object store: code archives, results, logs, checkpoints.

Keys are paths, ``tenants/<tenant>/...`` (contracts.md, "Bytes").
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from services.core.domain.errors import InvalidRequest

CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]")
"""Control characters, and the two others that XML, and so a listing of S3, cannot hold."""
_KEY_MAX: Final = 1024
"""Bytes. The lowest limit of all adapters: S3's."""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """The attributes of a stored object."""

    key: str
    size: int
    """Bytes."""
    modified: int
    """Unix ms of the last write."""
    etag: str
    """Differs when the content does."""


def check_key(key: str) -> None:
    """Raises InvalidRequest for a malformed key (see ``ObjectStore``). Every adapter calls it first."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidRequest("an object's key is valid Unicode") from None
    if not 1 <= size <= _KEY_MAX:
        raise InvalidRequest(f"an object's key has 1 to {_KEY_MAX} bytes, not {size}")
    if any(part in {"", ".", ".."} for part in key.split("/")):
        raise InvalidRequest(f"the parts of an object's key are not empty, '.' or '..': {key[:200]!r}")
    if CONTROL.search(key):
        raise InvalidRequest(f"an object's key has no control characters: {key[:200]!r}")


class ObjectStore(Protocol):
    """Objects by key.

    A key has 1 to 1024 bytes and consists of parts separated by '/', without control characters. No part is empty, '.'
    or '..'. All methods raise InvalidRequest for another key.
    """

    async def put(
        self, key: str, chunks: AsyncIterable[bytes], *, create_only: bool = False, size: int | None = None
    ) -> None:
        """Stores an object from a stream. It is visible only when complete, and durable when this returns.

        ``size``: the total number of bytes, where it is known; stores that write large objects in parts choose the size
        of the parts by it. Raises Duplicate where ``create_only`` is set and the key exists, and NoSpace where the
        store is full. After an error nothing of the new object remains.
        """
        ...

    async def head(self, key: str) -> ObjectMeta | None:
        """Returns the attributes of an object; None where there is none."""
        ...

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Yields the object's bytes [start, end) in chunks of at most 1 MiB. Raises NotFound."""
        ...

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> Sequence[ObjectMeta]:
        """Returns up to ``limit`` objects below the prefix, which ends with '/', in order of key.

        ``after``: only keys that come after this one.
        """
        ...

    async def delete(self, key: str) -> None:
        """Removes an object. No error where there is none."""
        ...

    async def delete_prefix(self, prefix: str) -> int:
        """Removes all objects below the prefix, which ends with '/'. Returns how many there were."""
        ...

    async def ping(self) -> None:
        """Raises Unavailable where the store cannot be used, and InvalidRequest where its settings are wrong."""
        ...
