"""Each call of a port as a failpoint (``services.core.failpoints``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from services.core.calls import Call
from services.core.domain.errors import Unavailable
from services.core.failpoints import Failpoints


class CallPoints:
    """A ``services.core.calls.Watcher``."""

    def __init__(self, failpoints: Failpoints) -> None:
        self._failpoints = failpoints

    async def call(self, call: Call, act: Callable[[], Awaitable[Any]]) -> Any:
        point = str(call)
        self._pass(point, "before")
        result = await act()
        self._pass(point, "done")
        asyncio.get_running_loop().call_soon(self._failpoints.passes, point, "answered")
        return result

    def stream(self, items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        return items

    def _pass(self, point: str, when: str) -> None:
        if self._failpoints.passes(point, when):
            raise Unavailable(f"a failpoint has cut {point}")
