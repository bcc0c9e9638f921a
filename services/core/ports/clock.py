"""Time and randomness, as a port, so that tests and the simulation control both."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The clocks of one process."""

    def now_ms(self) -> int:
        """Returns Unix time in milliseconds, for people and documents. It may jump."""
        ...

    def boottime(self) -> float:
        """Returns seconds since boot, for leases and durations. It never jumps and includes the time of suspension."""
        ...

    def random_bits(self, count: int) -> int:
        """Returns a random number below ``2**count``, fit for secrets."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Returns after at least ``seconds``."""
        ...
