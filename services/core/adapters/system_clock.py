"""The clock and randomness of this machine."""

from __future__ import annotations

import asyncio
import secrets
import time


class SystemClock:
    """See ``services.core.ports.clock.Clock``."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def random_bits(self, count: int) -> int:
        return secrets.randbits(count)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
