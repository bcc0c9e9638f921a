"""Metrics of many jobs at once, for lists: the last, smallest, largest and best value of named metrics.

The best value is the smallest of ``NAME:min``, and of names with ``loss`` or ``err`` in them, else the largest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import UNSET, UnsetType

from services.api.answers import Answer, doc, number
from services.api.params import wrong_parameter
from services.core.ports.metric_store import Aggregate

MOST_METRICS: Final = 20


class JobMetric(Answer):
    """What a job reported of one metric, in its newest attempt."""

    name: Annotated[str, doc("Name of the metric.")]
    context: Annotated[dict[str, str], doc("Labels that the training gave it.")]
    rank: Annotated[int, doc("Rank of the learner that reported it: the lowest.")]
    count: Annotated[int, doc("Number of points.")]
    last: Annotated[float | str, doc('The last value; "NaN", "Infinity" or "-Infinity" if it is not finite.')]
    last_step: Annotated[int | None, doc("Its step; null if none was given.")]
    min: Annotated[float | str | None, doc("The smallest value; null if there is no number.")]
    min_step: Annotated[int | None, doc("Its step.")]
    max: Annotated[float | str | None, doc("The largest value; null if there is no number.")]
    max_step: Annotated[int | None, doc("Its step.")]
    best: Annotated[float | str | None, doc("The smallest or the largest value, as the request says.")]
    best_step: Annotated[int | None, doc("Its step.")]
    curve: Annotated[
        list[float | str] | UnsetType,
        doc("Its values in the order of steps, thinned to about `curve_points`; minima and maxima are kept."),
    ] = UNSET


@dataclass(frozen=True, slots=True)
class WantedMetric:
    name: str
    smallest: bool
    """The best value is the smallest one."""


@dataclass(frozen=True, slots=True)
class WantedMetrics:
    """The metrics that a request names."""

    named: Sequence[WantedMetric]
    every: bool = False
    """All metrics of a job, at most ``MOST_METRICS`` of them."""

    def __bool__(self) -> bool:
        return self.every or bool(self.named)

    @property
    def names(self) -> list[str]:
        """For ``TelemetryClient.aggregates``."""
        return [] if self.every else [metric.name for metric in self.named]

    def of(self, aggregates: Sequence[Aggregate]) -> list[JobMetric]:
        """One for each name and context, in the order of the request."""
        if self.every:
            return [_metric(of, smallest=_is_smallest_best(of.name)) for of in aggregates[:MOST_METRICS]]
        return [
            _metric(aggregate, smallest=metric.smallest)
            for metric in self.named
            for aggregate in aggregates
            if aggregate.name == metric.name
        ]


def wanted_metrics(text: str | None) -> WantedMetrics:
    """The metrics of ``loss,accuracy:max`` or ``*``. Raises InvalidRequest for too many."""
    if (text or "").strip() == "*":
        return WantedMetrics((), every=True)
    wanted: list[WantedMetric] = []
    for part in (part.strip() for part in (text or "").split(",") if part.strip()):
        name, _, best = part.rpartition(":")
        if not name or best not in {"min", "max"}:
            name, best = part, "min" if _is_smallest_best(part) else "max"
        wanted.append(WantedMetric(name, best == "min"))
    if len(wanted) > MOST_METRICS:
        raise wrong_parameter("metrics", f"a list shows at most {MOST_METRICS} metrics")
    return WantedMetrics(wanted)


def _is_smallest_best(name: str) -> bool:
    return "loss" in name.lower() or "err" in name.lower()


def _metric(aggregate: Aggregate, *, smallest: bool) -> JobMetric:
    low, high = _number(aggregate.low), _number(aggregate.high)
    return JobMetric(
        name=aggregate.name,
        context=dict(aggregate.context),
        rank=aggregate.rank,
        count=aggregate.count,
        last=number(aggregate.last),
        last_step=aggregate.last_step,
        min=low,
        min_step=aggregate.low_step,
        max=high,
        max_step=aggregate.high_step,
        best=low if smallest else high,
        best_step=aggregate.low_step if smallest else aggregate.high_step,
    )


def _number(value: float) -> float | str | None:
    return None if math.isnan(value) else number(value)
