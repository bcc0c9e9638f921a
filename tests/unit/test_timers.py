"""Periodic tasks of a process wake it up together, and keep their periods."""

from __future__ import annotations

import itertools

import pytest

from services.core.runtime.timers import GRID_S, aligned, aligned_pause

EARLY_S, LATE_S = -0.001, 0.05
"""By so much an event loop may be early, and a busy one late."""


@pytest.mark.parametrize("start_s", [0.0, 7.1, 12_345.678, 86_400.249])
@pytest.mark.parametrize("period_s", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("error_s", [EARLY_S, 0.0, LATE_S])
@pytest.mark.parametrize("phase_s", [0.0, 0.123])
def test_period_is_exact_after_the_first_pause(start_s: float, period_s: float, error_s: float, phase_s: float) -> None:
    moments = [aligned(start_s + period_s, phase_s=phase_s)]
    for _ in range(10):
        moments.append(aligned(moments[-1] + error_s + period_s, phase_s=phase_s))
    assert period_s - GRID_S < moments[0] - start_s <= period_s + 0.01
    assert {round(later - earlier, 6) for earlier, later in itertools.pairwise(moments)} == {period_s}


def test_tasks_that_began_at_different_moments_wake_up_together() -> None:
    assert {aligned(began_s + 1.0) for began_s in (100.01, 100.1, 100.48, 100.9)} == {101.0}


async def test_only_pauses_of_a_second_or_more_are_changed() -> None:
    assert aligned_pause(0.2) == 0.2
    assert aligned_pause(0.99) == 0.99
    assert 0.0 <= aligned_pause(1.0) <= 1.01
    assert 1.0 <= aligned_pause(2.0) <= 2.01
