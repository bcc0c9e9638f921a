"""The calls of a process's ports as failpoints (``services.core.failpoints.points``), where those are on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from services.core.domain.errors import Unavailable
from services.core.failpoints.calls import Call, intercept_calls

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from services.core.failpoints.points import Failpoints

    Ports = TypeVar("Ports", bound=DataclassInstance)

Port = TypeVar("Port")
_NO_PORTS: Final = frozenset({"clock"})
"""Time passes by itself."""


def failpoints(process: str) -> Failpoints | None:
    """None in production: nobody has asked for them. ValueError where they cannot be had."""
    folder = os.environ.get("WEFT_FAILPOINTS")
    if not folder:
        return None
    from services.core.failpoints.points import Failpoints  # noqa: PLC0415 - not in production
    from services.core.runtime.home import default_home  # noqa: PLC0415 - as above

    return Failpoints(folder, process, default_home())


def at_failpoints(ports: Ports, process: str) -> Ports:
    """The same ports; where failpoints are on, every call of theirs is one, ``<process>.<field>.<method>``."""
    points = failpoints(process)
    if points is None:
        return ports
    return replace(ports, **{each.name: _at(getattr(ports, each.name), each.name, points) for each in fields(ports)})


def at_failpoint(port: Port, name: str, process: str) -> Port:
    """The same of a single port."""
    points = failpoints(process)
    return port if points is None else _at(port, name, points)


def _at(port: Port, name: str, points: Failpoints) -> Port:
    """What is no port (a secret, a table, nothing at all) stays as it is."""
    if name in _NO_PORTS or port is None or isinstance(port, bytes | Mapping):
        return port
    return intercept_calls(port, name, _CallPoints(points))


class _CallPoints:
    """A ``services.core.failpoints.calls.CallInterceptor``."""

    def __init__(self, points: Failpoints) -> None:
        self._points = points

    async def call(self, call: Call, act: Callable[[], Awaitable[Any]]) -> Any:
        point = str(call)
        self._pass(point, "before")
        result = await act()
        self._pass(point, "done")
        asyncio.get_running_loop().call_soon(self._points.passes, point, "answered")
        return result

    def stream(self, items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        return items

    def _pass(self, point: str, when: str) -> None:
        if self._points.passes(point, when):
            raise Unavailable(f"a failpoint has cut {point}")
