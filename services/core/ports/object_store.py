"""Bytes: code archives, results, logs, checkpoints. Keys are paths ``tenants/<t>/...`` (contracts.md, "Bytes")."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    key: str
    size: int
    """Bytes."""
    modified: int
    """Unix ms."""
    etag: str


class ObjectStore(Protocol):
    """A key has 1..1024 bytes of '/'-separated parts, none of them empty, '.' or '..', without control characters:
    anything else is InvalidRequest.
    """

    async def put(self, key: str, chunks: AsyncIterable[bytes], *, create_only: bool = False) -> ObjectMeta:
        """Streams an object in; visible only when complete, and durable when this returns.

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
