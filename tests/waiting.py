"""Waiting for a condition, instead of for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self, TypeVar, overload

T = TypeVar("T")
HANG_S: Final = 120.0
"""Seconds. The limit of every wait that has no other: it ends a test that hangs, and no test on a busy machine."""
_INTERVAL_S: Final = 0.01
_LONGEST_INTERVAL_S: Final = 0.05
"""A condition is often a request: one every 10 ms would take as much processor time as what the test waits for."""
_GROWTH: Final = 1.25


@overload
async def until(condition: Callable[[], Awaitable[T]], timeout: float = HANG_S) -> T: ...


@overload
async def until(condition: Callable[[], T], timeout: float = HANG_S) -> T: ...


async def until(condition: Callable[[], Any], timeout: float = HANG_S) -> Any:
    """The first true value of ``condition`` (a function, or a coroutine function), called after 10 ms, and
    less often the longer it takes.

    Raises AssertionError with the last value after ``timeout`` seconds.
    """
    deadline, pauses = time.monotonic() + timeout, _pauses()
    while True:
        answer = condition()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(_late(condition, timeout, value))
        await asyncio.sleep(next(pauses))


def eventually(condition: Callable[[], T], timeout: float = HANG_S) -> T:
    """``until``, for tests without an event loop."""
    deadline, pauses = time.monotonic() + timeout, _pauses()
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(_late(condition, timeout, value))
        time.sleep(next(pauses))
    return value


def _pauses() -> Generator[float]:
    """Seconds before each further question."""
    pause_s = _INTERVAL_S
    while True:
        yield pause_s
        pause_s = min(pause_s * _GROWTH, _LONGEST_INTERVAL_S)


def _late(condition: Callable[[], object], timeout: float, value: object) -> str:
    return f"not within {timeout} s: {inspect.getsource(condition).strip()} is still {value!r}"


def in_thread(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Returns the result of a coroutine function, for synchronous fixtures that may run while an event loop does."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, function()).result()


class Stopwatch:
    """Measures the wall time of one ``with`` block."""

    took_s = 0.0
    """Seconds."""

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.took_s = time.monotonic() - self._began


def tries_within(limit_s: float, most: int = 10) -> Generator[Stopwatch]:
    """Asserts that something can be done in less than ``limit_s`` seconds of wall time, on a machine that may be busy.

        for stopwatch in tries_within(1.0):
            ...
            with stopwatch:
                ...

    The body of the loop is repeated until one of its blocks was quick enough: other programs delay some of them, a
    wrong implementation delays all. AssertionError with the times where ``most`` blocks were all too slow.
    """
    times: list[float] = []
    for _ in range(most):
        stopwatch = Stopwatch()
        yield stopwatch
        times.append(stopwatch.took_s)
        if stopwatch.took_s < limit_s:
            return
    raise AssertionError(f"never within {limit_s} s: {[round(took_s, 3) for took_s in times]}")
