"""How many requests a process sends to the API server at the same time, and which of those that wait is the next.

Starts of jobs wait behind everything else, and the earlier ones go first. Where hundreds of gangs start at once, the
first of them are then complete while the last have not begun, and the scheduler has work from the beginning. If all of
them went side by side, no gang would be complete until nearly all were.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Final

_URGENT: Final = 0
"""Before every start."""
_turn: Final[ContextVar[int]] = ContextVar("turn", default=_URGENT)


@contextmanager
def starting(turn: int) -> Generator[None]:
    """Requests of this block, and of tasks that it creates, are of the start of a job. The lowest ``turn`` is the next.

    ``turn``: from 1.
    """
    token = _turn.set(turn)
    try:
        yield
    finally:
        _turn.reset(token)


class Slots:
    """``async with slots``: holds one slot. Requests of the same turn get theirs in order of arrival."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = count()

    async def __aenter__(self) -> None:
        if self._free:
            self._free -= 1
            return
        granted = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (_turn.get(), next(self._arrivals), granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._give_back()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._give_back()

    def _give_back(self) -> None:
        """To the next that still waits."""
        while self._waiting:
            granted = heapq.heappop(self._waiting)[-1]
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1
