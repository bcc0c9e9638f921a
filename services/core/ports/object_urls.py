"""URLs that let who holds one do one thing to one object, for a short time, without the store's credentials.

Helpers move the platform's bytes by them (docs/adr/0007-signed-urls.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

Verb: TypeAlias = Literal["get", "head", "put", "begin", "part", "complete", "abort"]
METHODS: Final[dict[Verb, str]] = {
    "get": "GET", "head": "HEAD", "put": "PUT", "begin": "POST", "part": "PUT", "complete": "POST", "abort": "DELETE",
}  # fmt: skip
READS: Final[frozenset[Verb]] = frozenset({"get", "head"})


@dataclass(frozen=True, slots=True)
class ObjectRequest:
    """One thing to do to one object. Large ones are written in parts: ``begin`` gives an upload's name."""

    verb: Verb
    key: str
    upload: str = ""
    """Of ``part``, ``complete`` and ``abort``."""
    part: int = 0
    """1..10,000, of ``part``."""

    @property
    def method(self) -> str:
        return METHODS[self.verb]


class ObjectUrls(Protocol):
    def url(self, request: ObjectRequest) -> str:
        """Good for some minutes. InvalidRequest where the key is none. Who may ask for it is the caller's to know."""
        ...
