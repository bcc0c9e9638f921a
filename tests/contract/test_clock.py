"""Contract of every Clock."""

from __future__ import annotations

import time

import pytest

from services.core.adapters.system_clock import SystemClock
from services.core.domain.ids import RANDOM_BITS
from services.core.ports.clock import Clock


@pytest.fixture(params=[SystemClock])
def clock(request: pytest.FixtureRequest) -> Clock:
    made: Clock = request.param()
    return made


def test_boot_time_never_falls(clock: Clock) -> None:
    readings = [clock.boottime() for _ in range(1000)]
    assert readings == sorted(readings)


async def test_sleep_takes_at_least_its_time_on_the_clock(clock: Clock) -> None:
    before = clock.boottime()
    await clock.sleep(0.01)
    assert clock.boottime() - before >= 0.01


def test_random_numbers_fill_their_bits_and_do_not_repeat(clock: Clock) -> None:
    numbers = [clock.random_bits(RANDOM_BITS) for _ in range(1000)]
    assert len(set(numbers)) == 1000
    assert all(0 <= number < 2**RANDOM_BITS for number in numbers)
    assert max(numbers).bit_length() > RANDOM_BITS - 8


def test_the_system_s_clock_shows_unix_milliseconds() -> None:
    assert SystemClock().now_ms() == pytest.approx(time.time() * 1000, abs=5_000)
