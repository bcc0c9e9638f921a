"""Blocking work in threads, for callers that may be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of blocking work in a thread of asyncio's own pool, as ``wait_to_end``."""
    return await wait_to_end(asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs)))


async def wait_to_end(running: asyncio.Future[T]) -> T:
    """The result of work in a thread, which nothing can cancel.

    A cancelled caller still waits for its end: until then, what the work uses must not be closed or given to another.
    """
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # nothing else reads it
        raise
