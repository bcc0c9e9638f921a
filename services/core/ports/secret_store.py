"""Secrets by name. Values are bytes, never logged, never returned by any API."""

from __future__ import annotations

from typing import Final, Protocol
from urllib.parse import quote, unquote

from services.core.domain.errors import InvalidRequest

_NAME_MAX: Final = 255


def escaped(name: str) -> str:
    """The name as stores keep it: everything but letters, digits, '_', '.', '-' and '~' escaped, after an '='.

    So no name can leave a folder, hide, or meet another. InvalidRequest where it is none.
    """
    try:
        kept = "=" + quote(name, safe="")
    except UnicodeEncodeError:
        raise InvalidRequest("a secret's name is valid Unicode") from None
    if not name or len(kept) > _NAME_MAX:
        raise InvalidRequest(f"a secret's name has 1 to {_NAME_MAX - 1} letters and digits (others count threefold)")
    return kept


def unescaped(kept: str) -> str:
    """The name again."""
    return unquote(kept.removeprefix("="))


class SecretStore(Protocol):
    async def get(self, name: str) -> bytes | None: ...

    async def put(self, name: str, value: bytes) -> None:
        """Creates or replaces, durably."""
        ...

    async def get_or_create(self, name: str, value: bytes) -> bytes:
        """The value that is there; else stores this one. Of racing callers all get the same."""
        ...

    async def delete(self, name: str) -> None: ...
