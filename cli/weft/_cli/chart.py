"""Curves in a terminal: a chart of braille dots with labelled axes, and one-line sparklines.

A character holds 2 x 4 dots, so 60 x 8 characters show 120 x 32 points. Where several points share a column of dots,
all of them are drawn: a spike is never thinned away.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Final

from weft._cli.text import number

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
# Bits of the dots of one braille character, [column][row from the top].
_DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_EMPTY: Final = "\u2800"

Curve = Sequence[tuple[float, float]]
"""Points (x, y) with rising x."""


def sparkline(values: Sequence[float], width: int = 20) -> str:
    """The course of ``values`` in one line; a gap where a value is not finite."""
    if not values:
        return ""
    count = min(width, len(values))
    picked = [values[round(place * (len(values) - 1) / max(1, count - 1))] for place in range(count)]
    finite = [value for value in picked if math.isfinite(value)]
    if not finite:
        return " " * count
    low, high = min(finite), max(finite)
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(_share(v, low, high) * top)] if math.isfinite(v) else " " for v in picked)


def chart(curve: Curve, *, width: int = 80, height: int = 8, title: str = "") -> list[str]:
    """Lines of at most ``width`` characters: title, ``height`` rows, the x axis. None without points."""
    points = [(x, y) for x, y in curve if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return []
    left, right = min(x for x, _y in points), max(x for x, _y in points)
    low, high = min(y for _x, y in points), max(y for _x, y in points)
    if high == low:
        pad = abs(high) * 0.05 or 0.5
        low, high = max(low - pad, -sys.float_info.max), min(high + pad, sys.float_info.max)
    labels = {0: number(high), height // 2: number(_at(low, high, height // 2, height)), height - 1: number(low)}
    margin = max(len(label) for label in labels.values())
    columns = max(8, width - margin - 2)
    canvas = _draw(points, (left, right), (low, high), columns, height)
    lines = [title[:width]] if title else []
    for row in range(height):
        tick = "┤" if row in labels else "│"
        lines.append(f"{labels.get(row, ''):>{margin}}{tick}{canvas[row]}".rstrip(" " + _EMPTY))
    first, last = number(left), number(right) if right > left else ""
    lines.append(f"{'':>{margin}}└{'─' * columns}")
    if len(first) + 1 + len(last) > columns:
        last = ""  # no room for both ends of the axis
    lines.append(f"{'':>{margin}} {first}{last:>{max(0, columns - len(first))}}".rstrip())
    return lines


def _at(low: float, high: float, row: int, height: int) -> float:
    if math.isinf((high - low) * height):
        return 1024 * _at(low / 1024, high / 1024, row, height)
    return high - (high - low) * row / max(1, height - 1)


def _share(value: float, start: float, end: float) -> float:
    """How far ``value`` is on the way from ``start`` to ``end``: 0 to 1; 0 where they are equal."""
    if math.isinf(end - start):
        return _share(value / 2, start / 2, end / 2)
    return (value - start) / (end - start) if end != start else 0.0


def _draw(points: Curve, xs: tuple[float, float], ys: tuple[float, float], columns: int, height: int) -> list[str]:
    wide, tall = columns * 2, height * 4
    cells = [[0] * columns for _row in range(height)]

    def place(x: float, y: float) -> tuple[int, int]:
        return round(_share(x, *xs) * (wide - 1)), round(_share(y, ys[1], ys[0]) * (tall - 1))

    before: tuple[int, int] | None = None
    for x, y in points:
        here = place(x, y)
        for column, row in _line(before or here, here):
            cells[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
        before = here
    return ["".join(chr(0x2800 + bits) for bits in row) for row in cells]


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots between two dots, ends included."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (round(start[0] + (end[0] - start[0]) * step / steps), round(start[1] + (end[1] - start[1]) * step / steps))
        for step in range(steps + 1)
    ]


def thin(curve: list[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most about ``most`` points that look the same: of each stretch its lowest and its highest."""
    if len(curve) <= most:
        return curve
    stretch = math.ceil(len(curve) / (most // 2))
    kept: list[tuple[float, float]] = []
    for begin in range(0, len(curve), stretch):
        part = curve[begin : begin + stretch]
        kept.extend(sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}))
    return kept
