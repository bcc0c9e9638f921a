"""Secrets by name. Values are bytes, never logged, never returned by any API."""

from __future__ import annotations

from typing import Protocol


class SecretStore(Protocol):
    async def get(self, name: str) -> bytes | None: ...

    async def put(self, name: str, value: bytes) -> None:
        """Creates or replaces, durably."""
        ...

    async def get_or_create(self, name: str, value: bytes) -> bytes:
        """The value that is there; else stores this one. Of racing callers all get the same."""
        ...

    async def delete(self, name: str) -> None: ...
