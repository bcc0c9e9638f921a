"""A bound on the pauses of a client that sends a body or a stream of messages.

A client that vanishes without a word, e.g. a laptop that sleeps, leaves a connection that looks alive. Without a bound
its upload would keep one of its tenant's places, and its file in the spool, for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

from services.core.domain.errors import Unavailable

_T = TypeVar("_T")


async def within_idle_limit(pieces: AsyncIterator[_T], idle_s: float) -> AsyncGenerator[_T]:
    """The pieces as they arrive. Raises Unavailable if the next one, or the end, does not come within ``idle_s``.

    The time that the reader of the pieces takes does not count.
    """
    while True:
        try:
            async with asyncio.timeout(idle_s):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Unavailable(
                f"the rest of the request did not come: nothing arrived for {idle_s:.0f} s; send it again",
                retry_after_s=1,
            ) from None
        yield piece
