"""Time and randomness, so that tests and simulations own both."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Unix time in milliseconds: for people and documents."""
        ...

    def boottime(self) -> float:
        """Seconds on a clock that never jumps and goes on while the machine sleeps: for leases and durations."""
        ...

    def random_bits(self, count: int) -> int:
        """A fresh random number below ``2**count``, fit for secrets."""
        ...

    async def sleep(self, seconds: float) -> None: ...
