"""Waiting for something to happen, or for some time to pass, ten times a second and for days.

``asyncio.timeout`` around ``Event.wait`` does the same at four times the cost: it ends the wait by a cancellation.
"""

from __future__ import annotations

import asyncio


class Wakeup:
    """Rung once it stays rung, until it is cleared. One waiter."""

    def __init__(self) -> None:
        self._rung = False
        self._waiting: asyncio.Future[None] | None = None

    @property
    def rung(self) -> bool:
        return self._rung

    def ring(self) -> None:
        self._rung = True
        self._wake()

    def clear(self) -> None:
        self._rung = False

    async def wait(self, seconds: float) -> bool:
        """Returns when it is rung, or so much later; whether it is rung."""
        if not self._rung:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = loop.call_later(max(0.0, seconds), self._wake)
            try:
                await self._waiting
            finally:
                timer.cancel()
                self._waiting = None
        return self._rung

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
