"""Makes a process die, stop or lose its connection at one exact call of its ports.

``Tripwire.wrap(port, name)`` wraps the port. Every call reaches the real port and is counted and recorded. A fault
happens at call number ``at``: ``before`` the call; ``after`` its effect and before its answer; or once it is
``answered``, before the process makes its next call.

    crash   the process is dead: its later calls have no effect
    cut     the caller gets Unavailable and continues (a hint is lost without an error, as its port allows)
    pause   the process is stopped until ``resume``; the call happens then, late
    act     ``act`` runs at this moment; the caller does not notice
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from services.core.domain.errors import Unavailable
from services.core.failpoints.calls import Call, intercept_calls

Port = TypeVar("Port")


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class Tripwire:
    at: int | tuple[str, int] = -1
    """Number of the call among all calls, from 0; or ``("cluster.do", 3)``: among calls of that name, from 1."""
    when: str = "before"
    """before | after | answered."""
    what: str = "crash"
    """crash | cut | pause | act."""
    act: Callable[[], Awaitable[object]] | None = None
    calls: list[str] = field(default_factory=list)
    """``port.method`` of each call, in order."""
    points: list[str] = field(default_factory=list)
    """The same with the subject of each call: ``cluster.do(reserve)``."""
    tripped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the fault has happened."""
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    moving: asyncio.Event = field(default_factory=_set)
    """Cleared while the process is stopped."""

    def wrap(self, port: Port, name: str) -> Port:
        return intercept_calls(port, name, self)

    def resume(self) -> None:
        """Ends a ``pause``."""
        self.moving.set()

    async def call(self, call: Call, act: Callable[[], Awaitable[Any]]) -> Any:
        await self._live()
        self.calls.append(call.name)
        self.points.append(str(call))
        number = len(self.calls) - 1 if isinstance(self.at, int) else (call.name, self.calls.count(call.name))
        here = number == self.at
        if here and self.when == "before":
            lost = await self._trip(call)
            if lost:
                return None
        result = await act()
        if here and self.when == "after":
            await self._trip(call)
        if here and self.when == "answered":
            self.tripped.set()
            self.dead.set()
        return result

    async def stream(self, items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for item in items:
            await self._live()
            yield item

    async def _live(self) -> None:
        if self.dead.is_set():
            raise asyncio.CancelledError
        await self.moving.wait()

    async def _trip(self, call: Call) -> bool:
        """Makes the fault happen. Returns True if the call is lost without an error."""
        self.tripped.set()
        if self.act is not None:
            await self.act()
        elif self.what == "pause":
            self.moving.clear()
            await self.moving.wait()
        elif self.what == "crash":
            self.dead.set()
            await asyncio.Event().wait()
        elif call.port != "hints":
            raise Unavailable("the connection was cut")
        return self.what == "cut" and call.port == "hints"
