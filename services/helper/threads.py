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

T = TypeVar("T")


async def call_in_thread(function: Callable[[], T]) -> T:
    """Calls the function in a thread of its own and returns its result or raises its error.

    When it is cancelled it returns at once, and leaves the thread behind; it does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def set_outcome(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # None is a T where the function returns it

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as raised:  # noqa: BLE001 - a thread's edge: it is raised in the caller
            error = raised
        with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
            loop.call_soon_threadsafe(set_outcome, result, error)

    threading.Thread(target=run, name="blocking call", daemon=True).start()
    return await done
