"""An event with a timeout, for loops that wait ten times a second for days.

``asyncio.timeout`` around ``Event.wait`` does the same at four times the cost: it ends the wait by a cancellation.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from services.core.runtime.timers import GRID_S, aligned_pause

PHASE_S: Final = random.random() * GRID_S
"""Of this helper's timers: the helpers of a machine must not all wake up at once."""


class Wakeup:
    """A flag that one task waits for. It stays set until it is cleared."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._wake_waiter()

    def clear(self) -> None:
        self._is_set = False

    async def wait(self, seconds: float) -> bool:
        """Returns when the flag is set, or after ``seconds``; returns the flag. A second or more: see ``timers``."""
        if not self._is_set:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(max(0.0, aligned_pause(seconds, phase_s=PHASE_S)), self._wake_waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self._is_set

    def _wake_waiter(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
