"""Makes each call of a process's ports a failpoint (``services.core.failpoints.points``), where failpoints are on."""

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
_NO_FAILPOINTS: Final = frozenset({"clock", "mint"})
"""Ports without side effects."""


def failpoints(process: str) -> Failpoints | None:
    """Returns the failpoints of a process; None where they are off, as in production.

    ``process``: its name in points, e.g. ``lcm``. Raises ValueError where their folder is not private.
    """
    folder = os.environ.get("WEFT_FAILPOINTS")
    if not folder:
        return None
    from services.core.failpoints.points import Failpoints  # noqa: PLC0415 - not imported in production
    from services.core.runtime.home import default_home  # noqa: PLC0415 - as above

    return Failpoints(folder, process, default_home())


def at_failpoints(ports: Ports, process: str) -> Ports:
    """Returns the ports with each call as a failpoint ``<process>.<field>.<method>``, where failpoints are on.

    ``ports``: a dataclass. Its fields that are no ports (a secret, a table, None) stay as they are.
    """
    points = failpoints(process)
    if points is None:
        return ports
    wrapped = {field.name: _wrap(getattr(ports, field.name), field.name, points) for field in fields(ports)}
    return replace(ports, **wrapped)


def at_failpoint(port: Port, name: str, process: str) -> Port:
    """Returns a single port with each call as a failpoint ``<process>.<name>.<method>``, where failpoints are on."""
    points = failpoints(process)
    return port if points is None else _wrap(port, name, points)


def _wrap(port: Port, name: str, points: Failpoints) -> Port:
    if name in _NO_FAILPOINTS or port is None or isinstance(port, bytes | Mapping):
        return port
    return intercept_calls(port, name, _CallPoints(points))


class _CallPoints:
    """The ``CallInterceptor`` that passes a failpoint before and after each call."""

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
