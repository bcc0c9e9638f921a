"""Bytes: code archives, results, logs, checkpoints. Keys are paths ``tenants/<t>/...`` (contracts.md, "Bytes")."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from services.core.domain.errors import InvalidRequest

CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]")
"""Control characters, and the two others that XML, and so a listing of S3, cannot hold."""
_KEY_MAX: Final = 1024
"""Bytes: the least of what the stores take (S3's)."""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    key: str
    size: int
    """Bytes."""
    modified: int
    """Unix ms."""
    etag: str


def check_key(key: str) -> None:
    """What every store asks first: InvalidRequest where a key is none (see ``ObjectStore``)."""
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
    """A key has 1..1024 bytes of '/'-separated parts, none of them empty, '.' or '..', without control characters:
    anything else is InvalidRequest.
    """

    async def put(
        self, key: str, chunks: AsyncIterable[bytes], *, create_only: bool = False, size: int | None = None
    ) -> ObjectMeta:
        """Streams an object in; visible only when complete, and durable when this returns. ``size``: what the chunks
        will come to, where it is known: stores that take large objects in parts cut them by it.

        Duplicate where ``create_only`` and the key exists; NoSpace where the store is full (nothing half-made stays).
        """
        ...

    async def head(self, key: str) -> ObjectMeta | None: ...

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The object's bytes [start, end) in chunks of at most 1 MiB. NotFound."""
        ...

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> Sequence[ObjectMeta]:
        """Objects below the prefix (which ends with '/'), by key, beyond ``after``."""
        ...

    async def delete(self, key: str) -> None: ...

    async def delete_prefix(self, prefix: str) -> int: ...

    async def ping(self) -> None: ...
