"""A clock that a test sets."""

from __future__ import annotations


class SetClock:
    """Only ``boottime`` is used."""

    def __init__(self) -> None:
        self.now = 1000.0

    def boottime(self) -> float:
        return self.now

    def now_ms(self) -> int:
        raise AssertionError

    def random_bits(self, count: int) -> int:
        raise AssertionError(count)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(seconds)
