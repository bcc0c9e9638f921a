"""Blocking calls beside the event loop, which may never return.

Not asyncio's executor: at its end the event loop would wait for a call that hangs, for example in a file system whose
server is gone, and the helper would never end.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from services.core.runtime.outcomes import outcome_of

T = TypeVar("T")


async def call_in_thread(function: Callable[[], T]) -> T:
    """Calls the function in a thread of its own and returns its result or raises its error.

    When it is cancelled it returns at once, and leaves the thread behind; it does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        outcome = outcome_of(function)
        with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
            loop.call_soon_threadsafe(outcome.settle, done)

    threading.Thread(target=run, name="blocking call", daemon=True).start()
    return await done
