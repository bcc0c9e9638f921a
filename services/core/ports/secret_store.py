"""The secret store: bytes by name. Values are never logged, and no API returns them."""

from __future__ import annotations

from typing import Final, Protocol
from urllib.parse import quote, unquote

from services.core.domain.errors import InvalidRequest

_NAME_MAX: Final = 255


def escaped(name: str) -> str:
    """Returns the name in the form in which adapters store it: '=' and the percent-encoded name.

    All but letters, digits, '_', '.', '-' and '~' is encoded. So the result is a safe file name: it leaves no folder,
    is not hidden, and differs for different names. Raises InvalidRequest for an empty or too long name.
    """
    stored_name = escaped_prefix(name)
    if not name or len(stored_name) > _NAME_MAX:
        raise InvalidRequest(f"a secret's name has 1 to {_NAME_MAX - 1} letters and digits (others count threefold)")
    return stored_name


def escaped_prefix(prefix: str) -> str:
    """Returns the text with which the stored names of all secrets begin whose names begin with ``prefix``."""
    try:
        return "=" + quote(prefix, safe="")
    except UnicodeEncodeError:
        raise InvalidRequest("a secret's name is valid Unicode") from None


def unescaped(stored_name: str) -> str:
    """Returns the name that ``escaped`` was called with."""
    return unquote(stored_name.removeprefix("="))


class SecretStore(Protocol):
    """Secrets by name. Writes are durable when they return. All methods raise InvalidRequest for a malformed name."""

    async def get(self, name: str) -> bytes | None:
        """Returns the value; None where there is none."""
        ...

    async def put(self, name: str, value: bytes) -> None:
        """Creates or replaces a secret."""
        ...

    async def get_or_create(self, name: str, value: bytes) -> bytes:
        """Returns the stored value; stores and returns ``value`` where there is none. Racing callers get the same."""
        ...

    async def delete(self, name: str) -> None:
        """Removes a secret. No error where there is none."""
        ...

    async def names(self, prefix: str = "") -> list[str]:
        """Returns the names that begin with ``prefix``, in the order of their stored form; damaged secrets included."""
        ...
