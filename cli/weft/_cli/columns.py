"""Lays out a table on a terminal: widths, ellipses and folded cells, without a library that takes long to import."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_GAP: Final = "  "
_LEAST: Final = 4
"""A flexible column is never narrower."""
_LEAST_FOLDED: Final = 16
"""Nor a column that continues on further lines."""
_READABLE: Final = 9
"""A flexible column of this width, or of all that it holds, can be read."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How one column is set."""

    flexible: bool = False
    """May be cut with an ellipsis."""
    wraps: bool = False
    """Continues on further lines."""
    right: bool = False
    spare: int = 0
    """Left out, the highest number first, where flexible columns could not be read otherwise. 0: never."""


def readable_places(layouts: Sequence[Layout], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns to show: all, but spare ones where flexible columns could not be read otherwise."""
    places = list(range(len(layouts)))
    while True:
        cells = [[row[place] for place in places] for row in rows]
        natural = [max(map(cell_width, column)) for column in zip(*cells, strict=True)]
        widths = _shrunk(natural, _least_widths([layouts[place] for place in places], natural), width)
        spare = max(places, key=lambda place: layouts[place].spare)
        fits = sum(widths) + len(_GAP) * (len(widths) - 1) <= width
        readable = all(fitted >= min(whole, _READABLE) for fitted, whole in zip(widths, natural, strict=True))
        if (fits and readable) or layouts[spare].spare == 0:
            return places
        places.remove(spare)


def cell_width(text: str) -> int:
    """Columns that a terminal uses for the text: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def fit_widths(layouts: Sequence[Layout], rows: Iterable[Sequence[str]], width: int) -> list[int]:
    """The width of each column, so that ``width`` holds them all.

    Flexible and folded columns give way, the widest first. Only where that is not enough, the others do.
    """
    natural = [max(1, *map(cell_width, column)) for column in zip(*rows, strict=True)]
    least = _least_widths(layouts, natural)
    return _shrunk(_shrunk(natural, least, width), [min(_LEAST, fitted) for fitted in least], width)


def _least_widths(layouts: Sequence[Layout], natural: Sequence[int]) -> list[int]:
    """The widths below which columns cannot be read well."""
    return [
        min(whole, _LEAST_FOLDED if layout.wraps else _LEAST if layout.flexible else whole)
        for layout, whole in zip(layouts, natural, strict=True)
    ]


def _shrunk(widths: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """The widths, made smaller one by one, the widest first, until they fit or each is at its least."""
    widths = list(widths)
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while excess > 0:
        place = max(range(len(widths)), key=lambda index: (widths[index] > least[index], widths[index]))
        if widths[place] <= least[place]:
            break
        widths[place] -= 1
        excess -= 1
    return widths


def row_lines(layouts: Sequence[Layout], cells: Sequence[str], widths: Sequence[int]) -> list[list[str]]:
    """The lines of one row; each has every cell, padded to its width."""
    folded = [
        _fold(cell, width) if layout.wraps else [cut(cell, width)]
        for layout, cell, width in zip(layouts, cells, widths, strict=True)
    ]
    return [
        [
            _padded(lines[number] if number < len(lines) else "", width, right=layout.right)
            for layout, lines, width in zip(layouts, folded, widths, strict=True)
        ]
        for number in range(max(map(len, folded)))
    ]


def join(cells: Iterable[str]) -> str:
    """A line of padded cells."""
    return _GAP.join(cells).rstrip()


def _fold(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def cut(text: str, width: int) -> str:
    """The text, with an ellipsis at its end where it is wider."""
    if cell_width(text) <= width:
        return text
    kept = text
    while kept and cell_width(kept) > width - 1:
        kept = kept[:-1]
    return f"{kept}…"


def _padded(text: str, width: int, *, right: bool) -> str:
    space = " " * max(0, width - cell_width(text))
    return space + text if right else text + space
