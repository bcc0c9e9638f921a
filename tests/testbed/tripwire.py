"""A process that dies, or is cut off, at one exact call of its ports.

``Tripwire.wrap(port, name)`` stands in for the port: every call goes on to the real one, is counted and noted, and at
call number ``at`` something happens: before the call, or after it took effect and before its answer came.

    crash   the process is dead: the call never returns, and nothing it calls afterwards happens
    cut     the caller gets Unavailable, and lives on
    act     somebody else does something (``act``) at this very moment; the caller does not notice
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from services.core.domain.errors import Unavailable

Port = TypeVar("Port")


@dataclass
class Tripwire:
    at: int | tuple[str, int] = -1
    """The call's number of all, from 0; or ``("cluster.do", 3)``: its number of those, from 1."""
    when: str = "before"
    """before | after."""
    what: str = "crash"
    """crash | cut | act."""
    act: Callable[[], Awaitable[object]] | None = None
    calls: list[str] = field(default_factory=list)
    """``port.method`` of each call, in order."""
    dead: asyncio.Event = field(default_factory=asyncio.Event)

    def wrap(self, port: Port, name: str) -> Port:
        return cast("Port", _Proxy(self, port, name))

    async def _trip(self) -> None:
        if self.act is not None:
            await self.act()
            return
        if self.what == "cut":
            raise Unavailable("the connection was cut")
        self.dead.set()
        await asyncio.Event().wait()

    async def call(self, name: str, method: Any, args: Any, kwargs: Any) -> Any:
        if self.dead.is_set():
            raise asyncio.CancelledError
        self.calls.append(name)
        number = len(self.calls) - 1 if isinstance(self.at, int) else (name, self.calls.count(name))
        if (number, "before") == (self.at, self.when):
            await self._trip()
        result = await method(*args, **kwargs)
        if (number, "after") == (self.at, self.when):
            await self._trip()
        return result


class _Proxy:
    def __init__(self, wire: Tripwire, port: Any, name: str) -> None:
        self._wire, self._port, self._name = wire, port, name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._port, attribute)
        stand_in = self._stand_in(attribute, found)
        setattr(self, attribute, stand_in)
        return stand_in

    def _stand_in(self, attribute: str, found: Any) -> Any:
        if inspect.isasyncgenfunction(found):
            return self._stream(found)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._wire.call(f"{self._name}.{attribute}", found, args, kwargs)

        return call

    def _stream(self, method: Any) -> Any:
        async def stream(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            async for each in method(*args, **kwargs):
                if self._wire.dead.is_set():
                    raise asyncio.CancelledError
                yield each

        return stream
