"""Splits bytes into lines, such that any two readings of the same bytes give the same lines.

Where a line is cut depends on its bytes alone, never on how they were written or read. So a helper that was killed and
starts again at any boundary it had reached (the committed offset) produces the same lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from services.core.domain.text import storable

LINE_BYTES: Final = 16 * 2**10
"""The longest text line; longer ones are cut and marked (contracts.md)."""
REPORT_BYTES: Final = 64 * 2**10
"""The longest line of metrics: weft.report's own limit."""
_ESCAPE_BYTES: Final = 256
"""By so much escapes may lengthen a line. Binary output, with more of them, must not outgrow the limits of a batch."""
_CONTINUATION: Final = range(0x80, 0xC0)
"""Bytes that cannot begin a UTF-8 character."""


class Piece(NamedTuple):
    """A line or a part of one. A named tuple, because there may be a hundred thousand per second."""

    start: int
    end: int
    """The source's bytes [start, end), with the newline."""
    raw: bytes
    """The part of them that is shown."""
    partial: bool
    """More of the same line follows."""
    superseded: bool = False
    """A state of a progress bar that is followed by a newer one: it is not shown."""

    @property
    def text(self) -> str:
        """Storable text, never longer than ``LINE_BYTES``. Many undecodable bytes become question marks."""
        if b"\0" not in self.raw:
            try:
                return self.raw.decode()
            except UnicodeDecodeError:
                pass
        escaped = storable(self.raw.decode("utf-8", "surrogateescape"))
        if len(escaped.encode()) <= min(LINE_BYTES, len(self.raw) + _ESCAPE_BYTES):
            return escaped
        # One character for one byte: U+FFFD would take three.
        return self.raw.decode("utf-8", "replace").replace("\ufffd", "?").replace("\0", "?")


def split(data: bytes, start: int, *, ended: bool, limit: int = LINE_BYTES) -> Iterator[Piece]:
    """Yields the complete pieces in ``data``, which begins at offset ``start`` of its source.

    ``ended``: nothing follows in the source, so that bytes without a newline are complete, too. ``limit``: bytes.
    """
    place, size = 0, len(data)
    while place < size:
        newline = data.find(b"\n", place, place + limit + 1)
        if newline >= 0:
            yield Piece(start + place, start + newline + 1, visible_part(data[place:newline]), partial=False)
            place = newline + 1
        elif size - place > limit:
            end, partial = _cut(data, place, limit)
            # More than ``limit`` bytes are there, so the byte at ``end`` is known wherever the data was read to.
            is_bar = not partial and data[end] not in b"\r\n"
            yield Piece(start + place, start + end, visible_part(data[place:end]), partial, superseded=is_bar)
            place = end
        else:
            if ended:
                yield Piece(start + place, start + size, visible_part(data[place:]), partial=False)
            return


def visible_part(raw: bytes) -> bytes:
    """What a terminal shows in the end: a progress bar's last state."""
    if b"\r" not in raw:
        return raw
    return raw.rstrip(b"\r").rpartition(b"\r")[2]


def _cut(data: bytes, place: int, limit: int) -> tuple[int, bool]:
    """Where a line over the limit is cut, and whether that is within what is shown.

    After a state of a progress bar if there is one; else between two characters.
    """
    bar = data.rfind(b"\r", place, place + limit)
    if bar >= 0:
        return bar + 1, False
    end = place + limit
    for back in range(4):
        if data[end - back] not in _CONTINUATION:
            return end - back, True
    return end, True
