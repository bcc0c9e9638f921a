"""Statistics of one metric over jobs, step by step: how many values, mean, standard deviation, minimum, maximum.

Every number that is shown is exact: of all jobs that reported the step. Where there are more steps than were requested,
steps are left out, and no values are averaged over steps. The steps are those of the job that reported most of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.core.ports.metric_store import Column, even_places


@dataclass
class Moments:
    """Of the values of one step (Welford's method: no digits are lost for values with a large mean)."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of the squared distances from the mean."""
    low: float = math.inf
    high: float = -math.inf

    def add(self, value: float) -> None:
        """Adds a value; NaN is left out."""
        if math.isnan(value):
            return
        self.n += 1
        distance = value - self.mean
        self.mean = self.mean + distance / self.n if math.isfinite(distance) else self.mean + distance
        self.squares += distance * (value - self.mean)
        self.low, self.high = min(self.low, value), max(self.high, value)

    @property
    def std(self) -> float:
        """The standard deviation of the population; NaN if a value was infinite."""
        return math.sqrt(self.squares / self.n) if self.n else math.nan


@dataclass
class Statistics:
    """By step, for the given steps."""

    steps: Sequence[int]
    moments: dict[int, Moments] = field(init=False)

    def __post_init__(self) -> None:
        self.moments = {step: Moments() for step in self.steps}

    def add(self, column: Column) -> None:
        """Adds the values of one job, at the given steps."""
        for step, value in zip(column.steps, column.values, strict=True):
            if (moments := self.moments.get(step)) is not None:
                moments.add(value)

    def rows(self) -> list[tuple[int, Moments]]:
        """The steps with a value, in order."""
        return [(step, moments) for step in self.steps if (moments := self.moments.get(step)) and moments.n]


def chosen_steps(steps: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of the steps (at least two), at equal distances, with the first and the last one."""
    return [steps[place] for place in even_places(len(steps), most)]
