"""Retries the calls of a store for a minute, so that a short outage does not end a backup of hours.

A write whose answer was lost may have taken effect. Everything that a restore writes may be written twice; only an
insert then answers Duplicate, which is a success.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from services.core.domain.errors import Duplicate, Unavailable

T = TypeVar("T")
RETRY_FOR_S: Final = 60.0
_PAUSE_S: Final = 0.5
_ONCE: Final = frozenset({"put", "load", "close", "ping"})
"""Methods that take a stream, which cannot be read twice, or for which a retry has no use."""


async def with_retries(call: Callable[[], Awaitable[T]], *, retry_for_s: float = RETRY_FOR_S) -> T:
    """The result of ``call``, repeated while it raises Unavailable, for at most ``retry_for_s`` seconds."""
    deadline = time.monotonic() + retry_for_s
    while True:
        try:
            return await call()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(_PAUSE_S)


class Retrying:
    """A port whose calls are retried while its store is away."""

    def __init__(self, store: Any, *, retry_for_s: float = RETRY_FOR_S) -> None:
        self._store, self._retry_for_s = store, retry_for_s

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name in _ONCE or not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **options: Any) -> Any:
            tries = 0

            async def once() -> Any:
                nonlocal tries
                tries += 1
                try:
                    return await method(*args, **options)
                except Duplicate:
                    if tries > 1 and name == "insert":
                        return args[0]
                    raise

            return await with_retries(once, retry_for_s=self._retry_for_s)

        return call
