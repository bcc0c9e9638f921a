"""Bytes to lines, such that any two readings of the same bytes give the same lines.

Where a line is cut depends on its bytes alone, never on how they were written or read: so a helper that was killed and
begins again at any boundary it had reached (the committed offset) goes on as if nothing had been.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

LINE_BYTES: Final = 16 * 2**10
"""The longest text line; longer ones are cut and marked (contracts.md)."""
REPORT_BYTES: Final = 64 * 2**10
"""The longest line of metrics: weft.report's own limit."""
_CONTINUES: Final = range(0x80, 0xC0)
"""Bytes that cannot begin a UTF-8 character."""


class Piece(NamedTuple):
    """A line or a part of one. A named tuple because there are a hundred thousand of them in a second."""

    start: int
    end: int
    """The source's bytes [start, end), with the newline."""
    raw: bytes
    """What of them is shown."""
    partial: bool
    """More of the same line follows."""

    @property
    def text(self) -> str:
        """As UTF-8 whatever it was, and never longer than its bytes."""
        try:
            return self.raw.decode()
        except UnicodeDecodeError:
            # U+FFFD takes three bytes where there was one: noise must not outgrow the limit.
            return self.raw.decode("utf-8", "replace").replace("\ufffd", "?")


def split(data: bytes, start: int, *, ended: bool, limit: int = LINE_BYTES) -> Iterator[Piece]:
    """The pieces that are complete in ``data``, which lies at ``start`` in its source.

    ended: nothing follows in the source, so that what has no newline is complete, too.
    """
    place, size = 0, len(data)
    while place < size:
        newline = data.find(b"\n", place, place + limit + 1)
        if newline >= 0:
            yield Piece(start + place, start + newline + 1, _shown(data[place:newline]), partial=False)
            place = newline + 1
        elif size - place > limit:
            end, partial = _cut(data, place, limit)
            yield Piece(start + place, start + end, _shown(data[place:end]), partial)
            place = end
        else:
            if ended:
                yield Piece(start + place, start + size, _shown(data[place:]), partial=False)
            return


def _shown(raw: bytes) -> bytes:
    """What a terminal would show in the end: a progress bar's last state."""
    if b"\r" not in raw:
        return raw
    return raw.rstrip(b"\r").rpartition(b"\r")[2]


def _cut(data: bytes, place: int, limit: int) -> tuple[int, bool]:
    """Where a line over the limit is cut, and whether that is in the middle of what is shown.

    After a state of a progress bar if there is one; else between two characters.
    """
    bar = data.rfind(b"\r", place, place + limit)
    if bar >= 0:
        return bar + 1, False
    end = place + limit
    for back in range(4):
        if data[end - back] not in _CONTINUES:
            return end - back, True
    return end, True
