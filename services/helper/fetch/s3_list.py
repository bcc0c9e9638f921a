"""Reads a page of the list of a bucket, which a server sends that anyone may run.

A page of 16 MiB can be millions of elements or attributes. Read as a tree it would take half a gigabyte for each
learner of the machine, and seconds in which the helper does nothing else. So it is parsed as it comes, only what is
needed of it is kept, and a page is refused as soon as it has more than a list has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from xml.parsers import expat

_BYTES: Final = 16 * 2**20
"""Of one page: 1,000 keys of 1 KiB, each character escaped."""
_ELEMENTS: Final = 100_000
"""1,000 objects with some tens of fields."""
_TOKEN: Final = 256 * 1024
"""Bytes of one tag: more are attributes without number, which no list has."""
_OBJECT: Final = "Contents"
_FIELDS: Final = frozenset({"Key", "Size", "ETag"})
_OF_PAGE: Final = frozenset({"IsTruncated", "NextContinuationToken"})
_SIZE: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Listed:
    """An object of the list."""

    key: str
    size: int
    """Bytes."""
    etag: str


class UnreadableList(Exception):
    """The server sends something else than a list."""


def read_page(chunks: Iterable[bytes]) -> tuple[list[Listed], str]:
    """Returns the objects of a page, and the token of the next; empty: it is the last. Raises UnreadableList."""
    page, size = _Page(), 0
    try:
        for chunk in chunks:
            size += len(chunk)
            if size > _BYTES:
                raise UnreadableList
            page.parser.Parse(chunk, False)
            if size - max(0, page.parser.CurrentByteIndex) > _TOKEN:
                raise UnreadableList
        page.parser.Parse(b"", True)
    except expat.ExpatError:
        raise UnreadableList from None
    more, after = page.fields.get("IsTruncated", "") == "true", page.fields.get("NextContinuationToken", "")
    if more and not after:
        raise UnreadableList
    return page.objects, after if more else ""


class _Page:
    """What was read of a page."""

    def __init__(self) -> None:
        self.objects: list[Listed] = []
        self.fields: dict[str, str] = {}
        self._object: dict[str, str] = {}
        self._path: list[str] = []
        self._text: list[str] | None = None
        """Of a field that is needed."""
        self._elements = 0
        self.parser = expat.ParserCreate()
        self.parser.StartDoctypeDeclHandler = _refuse
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters

    def _start(self, name: str, _: dict[str, str]) -> None:
        self._elements += 1
        if self._elements > _ELEMENTS:
            raise UnreadableList
        self._path.append(name.rpartition(":")[2])
        self._text = [] if self._is_needed() else None
        if self._is_object():
            self._object = {}

    def _is_object(self) -> bool:
        return len(self._path) == 2 and self._path[1] == _OBJECT

    def _is_needed(self) -> bool:
        match self._path:
            case [_, name]:
                return name in _OF_PAGE
            case [_, container, name]:
                return container == _OBJECT and name in _FIELDS
            case _:
                return False

    def _characters(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)

    def _end(self, _: str) -> None:
        if self._text is not None:
            fields = self.fields if len(self._path) == 2 else self._object
            fields.setdefault(self._path[-1], "".join(self._text))
            self._text = None
        elif self._is_object():
            self._add()
        self._path.pop()

    def _add(self) -> None:
        size = self._object.get("Size", "")
        if not _SIZE.fullmatch(size):
            raise UnreadableList
        self.objects.append(Listed(self._object.get("Key", ""), int(size), self._object.get("ETag", "").strip('"')))


def _refuse(*_: object) -> None:
    """Declarations can make a page of any size from a small text."""
    raise UnreadableList
