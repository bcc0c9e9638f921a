"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")
_EVERY_S = 0.01


async def until(condition: Callable[[], T | Awaitable[T]], timeout: float = 10.0) -> T:
    """The first true value of ``condition`` (a function, or a coroutine function), asked every 10 ms.

    AssertionError with its last value where there is none in ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        found: Any = condition()
        value: T = await found if inspect.isawaitable(found) else found
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {inspect.getsource(condition).strip()} is still {value!r}")
        await asyncio.sleep(_EVERY_S)
