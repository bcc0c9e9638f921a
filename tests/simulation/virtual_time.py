"""An event loop with virtual time: when no task is ready, the time jumps to the next timer. No system calls or threads.

Ready tasks run in the order in which they became ready, timers in the order of their times, so that one seed always
gives the same run. (looptime, which other tests use, calls the selector; over 10,000 seeds that is most of the time.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(Exception):
    """No task is ready and there is no timer, so the simulation cannot continue."""


class _TimeJump:
    """The loop's selector: it jumps to the next timer."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck
        if timeout > 0:
            # At least to the next timer: ``now + timeout`` may be below it by a rounding error.
            self._loop.now = max(self._loop.now + timeout, self._loop.due())
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """``time()`` begins at 0 and is in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._selector = _TimeJump(self)

    def time(self) -> float:
        return self.now

    def due(self) -> float:
        """Returns the time of the next timer."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return scheduled[0].when() if scheduled else self.now

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs ``work`` in a new loop and returns its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
