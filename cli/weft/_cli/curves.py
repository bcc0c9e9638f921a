"""A job's metrics as they come in: curves to draw and latest values to name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from weft._cli.chart import thin
from weft._cli.text import number, one_line

if TYPE_CHECKING:
    from weft._records import Point

# Beyond this a curve is thinned out, keeping its lows and highs: a screen shows a few hundred points.
_MOST: Final = 4000

Key = tuple[str, tuple[tuple[str, str], ...]]
"""Name and context of a metric."""


class Curves:
    """Takes points in the order of their `seq`. Of several learners, the lowest rank's curve is shown."""

    def __init__(self, wanted: str | None = None) -> None:
        self._wanted = wanted
        self._curves: dict[Key, list[tuple[float, float]]] = {}
        self._ranks: dict[Key, int] = {}
        self.latest: dict[Key, Point] = {}

    def add(self, point: Point) -> None:
        key: Key = (point.name, tuple(sorted(point.context.items())))
        rank = self._ranks.setdefault(key, point.rank)
        if point.rank > rank:
            return
        if point.rank < rank:  # a lower rank speaks later than another
            self._ranks[key] = point.rank
            self._curves.pop(key, None)
        curve = self._curves.setdefault(key, [])
        x = float(point.step) if point.step is not None else (curve[-1][0] + 1 if curve else 0.0)
        # The latest value of a step counts, and an attempt that went on from a checkpoint repeats some.
        while curve and curve[-1][0] >= x:
            curve.pop()
        curve.append((x, point.value))
        if len(curve) > _MOST:
            self._curves[key] = thin(curve, _MOST // 2)
        self.latest[key] = point

    def main(self) -> Key | None:
        """The metric to draw: the requested one, else a loss, else the first that came."""
        if self._wanted is not None:
            return next((key for key in self._curves if key[0] == self._wanted), None)
        losses = [key for key in self._curves if "loss" in key[0].lower()]
        return min(losses, key=lambda key: len(key[0])) if losses else next(iter(self._curves), None)

    def curve(self, key: Key) -> list[tuple[float, float]]:
        return self._curves.get(key, [])

    def summary(self, *, most: int = 5) -> str:
        """e.g. ``step 120  loss 0.3125  accuracy 0.91``; the drawn metric first."""
        first = self.main()
        keys = sorted(self.latest, key=lambda key: key != first)[:most]
        steps = [point.step for point in self.latest.values() if point.step is not None]
        parts = [f"step {max(steps)}"] if steps else []
        parts += [f"{label(key)} {number(self.latest[key].value)}" for key in keys]
        return "  ".join(parts)


def label(key: Key) -> str:
    """A metric's name with its context: ``loss (subset=val)``."""
    name, context = key
    inside = ", ".join(f"{field}={value}" for field, value in context)
    return one_line(f"{name} ({inside})" if inside else name)
