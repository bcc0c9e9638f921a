"""Waiting for a condition, instead of for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, overload

T = TypeVar("T")
_INTERVAL_S = 0.01


@overload
async def until(condition: Callable[[], Awaitable[T]], timeout: float = 10.0) -> T: ...


@overload
async def until(condition: Callable[[], T], timeout: float = 10.0) -> T: ...


async def until(condition: Callable[[], Any], timeout: float = 10.0) -> Any:
    """Calls ``condition``, a function or coroutine function, every 10 ms and returns its first true value.

    Raises AssertionError with the last value after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        value = await result if inspect.isawaitable(result) else result
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {inspect.getsource(condition).strip()} is still {value!r}")
        await asyncio.sleep(_INTERVAL_S)


def eventually(condition: Callable[[], T], timeout: float = 10.0) -> T:
    """``until``, for tests without an event loop."""
    return asyncio.run(until(condition, timeout))


def in_thread(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Returns the result of a coroutine function, for synchronous fixtures that may run while an event loop does."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, function()).result()
