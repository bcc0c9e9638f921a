"""Signed URLs: each allows one operation on one object, for a short time, without the store's credentials.

Helpers read and write objects with them (docs/adr/0007-signed-urls.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

Verb: TypeAlias = Literal["get", "head", "put", "begin", "part", "complete", "abort", "delete"]
"""The operations. A large object is written in parts: begin, part (several times), complete or abort."""
METHODS: Final[dict[Verb, str]] = {
    "get": "GET",
    "head": "HEAD",
    "put": "PUT",
    "begin": "POST",
    "part": "PUT",
    "complete": "POST",
    "abort": "DELETE",
    "delete": "DELETE",
}
"""Operation -> HTTP method."""
READS: Final[frozenset[Verb]] = frozenset({"get", "head"})
"""The operations that change nothing."""


@dataclass(frozen=True, slots=True)
class ObjectRequest:
    """One operation on one object."""

    verb: Verb
    key: str
    upload: str = ""
    """The id that the response to ``begin`` named; for ``part``, ``complete`` and ``abort``."""
    part: int = 0
    """Number of the part, 1 to 10,000; for ``part``."""

    @property
    def method(self) -> str:
        """The HTTP method."""
        return METHODS[self.verb]


class ObjectUrls(Protocol):
    """Signs URLs."""

    def url(self, request: ObjectRequest) -> str:
        """Returns a URL that is valid for some minutes. Raises InvalidRequest for a malformed key.

        Does no I/O and checks no permission: the caller does.
        """
        ...
