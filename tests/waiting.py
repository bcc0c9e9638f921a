"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, overload

T = TypeVar("T")
_EVERY_S = 0.01


@overload
async def until(condition: Callable[[], Awaitable[T]], timeout: float = 10.0) -> T: ...


@overload
async def until(condition: Callable[[], T], timeout: float = 10.0) -> T: ...


async def until(condition: Callable[[], Any], timeout: float = 10.0) -> Any:
    """The first true value of ``condition`` (a function, or a coroutine function), asked every 10 ms.

    AssertionError with its last value where there is none in ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        found = condition()
        value = await found if inspect.isawaitable(found) else found
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {inspect.getsource(condition).strip()} is still {value!r}")
        await asyncio.sleep(_EVERY_S)


def eventually(condition: Callable[[], T], timeout: float = 10.0) -> T:
    """``until``, for tests without an event loop."""
    return asyncio.run(until(condition, timeout))


def in_thread(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What a coroutine function answers, for fixtures without ``async`` that may run while some loop does."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, ask()).result()
