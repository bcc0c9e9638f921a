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
        kept = [layouts[place] for place in places]
        cells = [[row[place] for place in places] for row in rows]
        widths = fit_widths(kept, cells, width)
        natural = [max(map(cell_width, column)) for column in zip(*cells, strict=True)]
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
    """The width of each column. Flexible and folded ones give way, the widest first, until ``width`` holds them all."""
    widths = [max(1, *map(cell_width, column)) for column in zip(*rows, strict=True)]
    least = [
        min(natural, _LEAST_FOLDED if layout.wraps else _LEAST if layout.flexible else natural)
        for layout, natural in zip(layouts, widths, strict=True)
    ]
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while excess > 0:
        place = max(range(len(widths)), key=lambda index: (widths[index] > least[index], widths[index]))
        if widths[place] <= least[place]:
            break  # nothing can give way: the terminal wraps
        widths[place] -= 1
        excess -= 1
    return widths


def row_lines(layouts: Sequence[Layout], cells: Sequence[str], widths: Sequence[int]) -> list[list[str]]:
    """The lines of one row; each has every cell, padded to its width."""
    folded = [
        _fold(cell, width) if layout.wraps else [_cut(cell, width)]
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


def _cut(text: str, width: int) -> str:
    if cell_width(text) <= width:
        return text
    kept = text
    while kept and cell_width(kept) > width - 1:
        kept = kept[:-1]
    return f"{kept}…"


def _padded(text: str, width: int, *, right: bool) -> str:
    space = " " * max(0, width - cell_width(text))
    return space + text if right else text + space
