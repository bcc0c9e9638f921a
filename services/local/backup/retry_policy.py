"""A store that is away for a moment does not end a backup of hours: each call is tried again for a minute.

A write whose answer was lost may have taken place. All that is written by a restore may be written again; only an
insert answers that it is there already, and then it is ours.
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
"""What takes a stream, which cannot be read again, and what has no use of another try."""


async def with_retries(ask: Callable[[], Awaitable[T]], *, patience_s: float = RETRY_FOR_S) -> T:
    """The answer, though it may come late; Unavailable where there is none within so many seconds."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return await ask()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(_PAUSE_S)


class Retrying:
    """A port whose every call is tried again while its store is away."""

    def __init__(self, store: Any, *, patience_s: float = RETRY_FOR_S) -> None:
        self._store, self._patience_s = store, patience_s

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

            return await with_retries(once, patience_s=self._patience_s)

        return call
