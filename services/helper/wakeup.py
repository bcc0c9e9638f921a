"""An event with a timeout, for loops that wait ten times a second for days.

``asyncio.timeout`` around ``Event.wait`` does the same at four times the cost: it ends the wait by a cancellation.
"""

from __future__ import annotations

import asyncio


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
        """Returns when the flag is set, or after ``seconds``; returns the flag."""
        if not self._is_set:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(max(0.0, seconds), self._wake_waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self._is_set

    def _wake_waiter(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
