"""The interval that benchmarks print beside a median."""

from __future__ import annotations

import pytest

from bench.report import median_interval


@pytest.mark.parametrize(
    ("count", "ends"), [(0, None), (5, None), (6, (1, 6)), (10, (2, 9)), (20, (6, 15)), (40, (14, 27))]
)
def test_interval_of_a_median_has_the_ranks_of_the_sign_test(count: int, ends: tuple[int, int] | None) -> None:
    assert median_interval(list(range(count, 0, -1))) == ends
