"""An event loop whose time passes only while nobody has anything to do: no system call, no thread, no chance.

(looptime, which the other tests use, still asks the selector; over ten thousand stories that is most of the time.)
What is ready runs in the order in which it became ready, timers in the order of their times: one seed, one run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(Exception):
    """Nobody waits for time, and nobody is ready: the simulation would stand still for ever."""


class _Leap:
    """In place of a selector: to the next timer."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck
        if timeout > 0:
            # At least to where the next timer is due, whatever floating point makes of the difference.
            self._loop.now = max(self._loop.now + timeout, self._loop.due())
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """``time()`` begins at 0 and is in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._selector = _Leap(self)

    def time(self) -> float:
        return self.now

    def due(self) -> float:
        """When the next timer is."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return scheduled[0].when() if scheduled else self.now

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, in a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
