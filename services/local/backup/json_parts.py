"""Reads JSON lines of any length in bounded memory: a document with a long list is given in parts.

A line of up to 8 MiB is parsed at once, as nearly all are. A longer one is parsed value by value: the first part is the
document with the beginning of its list, each further part has only more of the list. Nothing but the values beside
the list, or one item of it, is ever in memory whole; so a bound for that is enough, and no line and no entry needs one.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

MOST: Final = 64 * 2**20
"""Characters of a single value."""
PART: Final = 2 * 2**20
"""About so many characters of a long list are given, or written, at once."""
_READ: Final = 2**20
_LONG: Final = 8
"""A line of more than so many times _READ is parsed value by value."""
_SPLIT: Final = frozenset({"history", "sources", "lines", "points"})
"""Names of the lists that are given in parts."""
_ENDS: Final = frozenset(",:]}\n \t\r")
"""What may follow a value. After the first digits of a number there may be more of it."""
_SPACES: Final = re.compile(r"[ \t\r]*")
_DECODER: Final = json.JSONDecoder()


def parts(chunks: Iterable[bytes], *, read: int = _READ, part: int = PART) -> Iterator[Any]:
    """The documents of UTF-8 JSON lines, with long lists in parts. Raises ValueError or RecursionError for others.

    ``read``: so many characters are read at a time. ``part``: so many make a part of a list.
    """
    text = _Text(chunks, read)
    while text.peek():
        line = text.line()
        if line is not None:
            yield json.loads(line)
            continue
        yield from _long(text, part)
        if text.peek():
            text.take("\n")


def _long(text: _Text, part: int) -> Iterator[dict[str, Any]]:
    """The parts of the document that begins here."""
    document: dict[str, Any] = {}
    size = 0
    text.take("{")
    while True:
        begun = text.place
        key = text.value()
        if not isinstance(key, str):
            raise ValueError("a name is not a text")  # noqa: TRY004 - it is about the text
        text.take(":")
        if key in _SPLIT and text.peek() == "[":
            for items in _items(text, part):
                yield {**document, key: items}
                document = {}
        else:
            document[key] = text.value()
            size += text.place - begun
        if size > MOST:
            raise ValueError(f"a document of it has more than {MOST} characters")
        if text.skip("}"):
            break
        text.take(",")
    if document:
        yield document


def _items(text: _Text, part: int) -> Iterator[list[Any]]:
    items: list[Any] = []
    begun = text.place
    text.take("[")
    more = not text.skip("]")
    while more:
        items.append(text.value())
        more = not text.skip("]")
        if more:
            text.take(",")
        if more and text.place - begun > part:
            yield items
            items, begun = [], text.place
    yield items


class _Text:
    """Text that is read as far as it is needed."""

    def __init__(self, chunks: Iterable[bytes], read: int) -> None:
        self._read = read
        self._chunks, self._decoder = iter(chunks), codecs.getincrementaldecoder("utf-8")()
        self._buffer, self._at, self._before = "", 0, 0

    @property
    def place(self) -> int:
        """Number of characters parsed so far."""
        return self._before + self._at

    def peek(self) -> str:
        """The next character that is not a space; empty at the end."""
        while True:
            spaces = _SPACES.match(self._buffer, self._at)
            self._at = spaces.end() if spaces is not None else self._at
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return ""

    def skip(self, character: str) -> bool:
        """Parses the character, if it is the next one."""
        is_next = self.peek() == character
        self._at += is_next
        return is_next

    def take(self, character: str) -> None:
        if not self.skip(character):
            raise ValueError(f"there is no {character!r} at character {self.place}")

    def line(self) -> str | None:
        """Parses the rest of the line; None, and nothing is parsed, if it is long."""
        searched = 0
        while (end := self._buffer.find("\n", self._at + searched)) < 0:
            searched = len(self._buffer) - self._at
            if searched > _LONG * self._read:
                return None
            if not self._more():
                end = len(self._buffer)
                break
        line = self._buffer[self._at : end]
        self._at = min(end + 1, len(self._buffer))
        return line

    def value(self) -> Any:
        """Parses one JSON value."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._buffer, self._at)
            except ValueError:
                if not self._more():
                    raise
                continue
            if self._buffer[end : end + 1] in _ENDS or not self._more():
                self._at = end
                return value

    def _more(self) -> bool:
        """Reads as much again as is not parsed yet, so that parsing that anew costs little. False at the end."""
        rest = self._buffer[self._at :]
        if len(rest) > MOST:
            raise ValueError(f"a single value of it has more than {MOST} characters")
        read, wanted = [rest], max(self._read, len(rest))
        while wanted > 0 and (chunk := next(self._chunks, None)) is not None:
            read.append(self._decoder.decode(chunk))
            wanted -= len(read[-1])
        if len(read) == 1:
            self._decoder.decode(b"", final=True)
            return False
        self._before += self._at
        self._buffer, self._at = "".join(read), 0
        return True
