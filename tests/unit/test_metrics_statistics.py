"""Statistics over jobs are exact, step by step."""

from __future__ import annotations

import math
import statistics as reference

from hypothesis import given
from hypothesis import strategies as st

from services.core.ports.metric_store import Column
from services.metrics.statistics import Statistics, chosen_steps

finite = st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) > 1e-150)
"""The squares of smaller numbers are below the smallest double."""


@given(st.lists(st.lists(finite, min_size=5, max_size=5), min_size=1, max_size=20))
def test_mean_std_minimum_and_maximum_of_each_step_are_those_of_its_values(jobs: list[list[float]]) -> None:
    statistics = Statistics(range(5))
    for values in jobs:
        statistics.add(Column(range(5), values))
    for step, moments in statistics.rows():
        values = [job[step] for job in jobs]
        assert moments.n == len(jobs)
        assert (moments.low, moments.high) == (min(values), max(values))
        size = max(map(abs, values))
        assert math.isclose(moments.mean, reference.fmean(values), rel_tol=1e-12, abs_tol=size * 1e-12)
        assert math.isclose(moments.std, reference.pstdev(values), rel_tol=1e-9, abs_tol=size * 1e-9)


def test_small_differences_of_large_values_are_not_lost() -> None:
    statistics = Statistics([0])
    for value in (1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16):
        statistics.add(Column([0], [value]))
    [(_, moments)] = statistics.rows()
    assert moments.mean == 1e9 + 10
    assert math.isclose(moments.std, math.sqrt(22.5), rel_tol=1e-12)


def test_n_counts_the_jobs_with_a_number_at_the_step() -> None:
    statistics = Statistics([1, 2, 3, 4])
    statistics.add(Column([1, 2, 3], [1.0, math.nan, math.nan]))
    statistics.add(Column([2, 4], [3.0, math.inf]))
    assert [(step, moments.n, moments.mean) for step, moments in statistics.rows()] == [
        (1, 1, 1.0),
        (2, 1, 3.0),
        (4, 1, math.inf),
    ]
    assert statistics.rows()[0][1].std == 0.0
    assert math.isnan(statistics.rows()[2][1].std)


@given(st.lists(st.integers(), unique=True).map(sorted), st.integers(0, 100))
def test_steps_that_are_left_out_are_spread_evenly(steps: list[int], most: int) -> None:
    chosen = chosen_steps(steps, most)
    assert set(chosen) <= set(steps)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(len(steps), max(2, most))
    if steps:
        assert (chosen[0], chosen[-1]) == (steps[0], steps[-1])
