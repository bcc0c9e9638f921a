"""The intervals that benchmarks print beside a median and a mean."""

from __future__ import annotations

import pytest

from bench.report import mean_interval, median_interval


@pytest.mark.parametrize(
    ("count", "ends"), [(0, None), (5, None), (6, (1, 6)), (10, (2, 9)), (20, (6, 15)), (40, (14, 27))]
)
def test_interval_of_a_median_has_the_ranks_of_the_sign_test(count: int, ends: tuple[int, int] | None) -> None:
    assert median_interval(list(range(count, 0, -1))) == ends


def test_interval_of_a_mean_is_two_standard_errors_wide_on_each_side() -> None:
    assert mean_interval([-1.0, 1.0] * 50) == pytest.approx((-0.197, 0.197), abs=0.001)
