"""The network between processes and their ports, with faults: lost and late calls, cuts, pauses, kills.

A process reaches its ports only through its ``Connection``. A request travels, takes effect, and its answer travels
back. Between any two of these steps the process can be killed, cut off or paused. A pause is as by SIGSTOP: the process
then continues with what it read before.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from services.core.adapters.etcd.lease import EtcdLease
from services.core.domain.errors import Unavailable
from tests.simulation.stores import CheckedJobStore, SimulatedEtcd

Port = TypeVar("Port")
_SHORT_S: Final = 0.002
_LONG_S: Final = 0.03
_TIMEOUT_S: Final = 1.0
_POLL_S: Final = 0.2
WRITES: Final = frozenset(
    {
        "jobs.insert",
        "jobs.replace",
        "jobs.append_history",
        "jobs.replace_dispatcher",
        "status.put",
        "status.put_if",
        "status.delete",
        "status.delete_prefix",
        "cluster.create",
        "cluster.patch",
        "cluster.lift",
        "cluster.delete",
        "cluster.do",
        "cluster.stop",
        "cluster.teardown",
    }
)
"""Calls to which the faults of ``Connection.armed`` apply."""
FENCED: Final = frozenset({"jobs.replace", "jobs.replace_dispatcher"})
"""Writes after whose acknowledgement the process reads nothing older."""


@dataclass
class Network:
    """The state that all connections share."""

    chance: random.Random
    fault_counts: Counter[str] = field(default_factory=Counter)
    """Kind -> how many faults took effect."""
    away: set[str] = field(default_factory=set)
    """Ports whose servers do not answer."""
    actor: str = ""
    """Name of the process whose call is being executed."""
    note: Callable[..., None] = lambda *_: None
    """Writes a line to the trace."""
    late: list[asyncio.Task[None]] = field(default_factory=list)
    """Requests that take effect later."""


@dataclass
class Connection:
    """The connection of one process to its ports, and whether the process runs."""

    name: str
    """Name of the process."""
    network: Network
    job_store: CheckedJobStore
    etcd: SimulatedEtcd
    local: Collection[str] = ("hints",)
    """Ports that are objects of the process itself: calls of them are no requests."""
    cut: set[str] = field(default_factory=set)
    """Ports that this process cannot reach."""
    armed: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Faults of the next write: lost request | lost answer | late effect -> (port, seconds until a late effect)."""
    pause_at: tuple[str, float] = ("", 0.0)
    """(name of a call, seconds): the process is paused before it; with ``after ...`` before it gets the answer."""
    stale: int = 0
    """How many commits old the result of ``jobs.find`` may be."""
    keep_alive_delay_s: float = 0.0
    """Seconds that the answer to a keep-alive takes."""
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process is killed."""
    leases: list[EtcdLease] = field(default_factory=list)
    running: asyncio.Event = field(default_factory=asyncio.Event)
    """Unset while the process is paused."""

    def __post_init__(self) -> None:
        self.running.set()
        self._acknowledged = 0

    def wrap(self, port: Port, name: str) -> Port:
        """Returns the port with its calls over this connection; unchanged where it is ``local``."""
        return port if name in self.local else cast("Port", _Proxy(self, port, name))

    async def wait_until_running(self) -> None:
        """Returns when the process is not paused. Raises CancelledError where it is dead."""
        while not self.running.is_set():
            await self.running.wait()
        if self.dead.is_set():
            raise asyncio.CancelledError

    def can_reach(self, port: str) -> bool:
        return port not in self.cut and port not in self.network.away

    async def call(self, port: str, method_name: str, method: Any, args: Any, kwargs: Any) -> Any:
        """Calls a method of a port, with all delays and faults. Returns its result; raises Unavailable for a fault."""
        name = f"{port}.{method_name}"
        await self.begin(name)
        await self._delay()
        if not self.can_reach(port):
            await asyncio.sleep(self.network.chance.choice([0.01, 0.2, _TIMEOUT_S]))
            await self.wait_until_running()
            raise Unavailable(f"{port} does not answer")
        fault, seconds = self._take_armed(name)
        if fault == "late effect":
            late = asyncio.get_running_loop().create_task(self._late_effect(name, seconds, method, args, kwargs))
            self.network.late.append(late)
            await asyncio.sleep(_TIMEOUT_S)
        if fault in {"lost request", "late effect"}:
            await self.wait_until_running()
            raise Unavailable("the connection was cut")
        result = await self._execute(name, method, args, kwargs)
        if fault == "lost answer":
            raise Unavailable("the connection was cut before the answer came")
        if name == "status.keep_alive" and self.keep_alive_delay_s:
            await asyncio.sleep(self.keep_alive_delay_s)
        await self._delay()
        if f"after {name}" == self.pause_at[0]:
            self._pause(f"the answer of {name}")
        await self.wait_until_running()
        if name in FENCED:
            self._acknowledged = self.job_store.commits
        return result

    async def begin(self, name: str) -> None:
        """Returns when the process runs, perhaps after a pause before this call."""
        await self.wait_until_running()
        if name == self.pause_at[0]:
            self._pause(name)
            await self.wait_until_running()

    def _pause(self, name: str) -> None:
        """Pauses the process for the seconds of ``pause_at``. It then makes the call, with what it read before."""
        seconds, self.pause_at = self.pause_at[1], ("", 0.0)
        service = self.name.partition("-")[0]
        self.network.fault_counts[f"{service} paused before a call"] += 1
        self.network.note("FAULT paused before a call:", name, self.name, seconds)
        self.running.clear()
        asyncio.get_running_loop().call_later(seconds, self.running.set)

    async def _execute(self, name: str, method: Any, args: Any, kwargs: Any) -> Any:
        """Executes the call in the server, perhaps as a stale read."""
        if name == "jobs.find" and self.stale:
            at = max(self._acknowledged, self.job_store.commits - self.stale)
            if at < self.job_store.commits:
                self.network.fault_counts["stale read"] += 1
                return await self.job_store.find_stale(*args, at=at, **kwargs)
        self.network.actor = self.name
        return await method(*args, **kwargs)

    async def _late_effect(self, name: str, seconds: float, method: Any, args: Any, kwargs: Any) -> None:
        """Executes the call after its caller has given up."""
        await asyncio.sleep(seconds)
        self.network.note("late effect of", self.name, name)
        try:
            await self._execute(name, method, args, kwargs)
        except Exception as error:  # noqa: BLE001 - it is refused most often, and no caller waits for the answer
            self.network.note("refused", type(error).__name__)

    def _take_armed(self, name: str) -> tuple[str, float]:
        """Returns the armed fault for this call and disarms it; an empty kind where there is none."""
        for kind, (port, seconds) in self.armed.items():
            if name in WRITES and name.startswith(port):
                del self.armed[kind]
                self.network.fault_counts[f"{kind}: {name.partition('.')[0]}"] += 1
                self.network.note(kind, self.name, name)
                return kind, seconds
        return "", 0.0

    async def _delay(self) -> None:
        """The time of a message on the network: none, short or long."""
        draw = self.network.chance.random()
        if draw > 0.4:
            await asyncio.sleep(self.network.chance.expovariate(1 / (_SHORT_S if draw < 0.95 else _LONG_S)))

    async def stream(self, port: str, method: Any, args: Any, kwargs: Any) -> AsyncGenerator[Any]:
        """Yields the items of a port's stream. They wait while the port cannot be reached."""
        async with aclosing(method(*args, **kwargs)) as source:
            async for item in source:
                await self._delay()
                await self.wait_until_running()
                while not self.can_reach(port):
                    await asyncio.sleep(_POLL_S)
                    await self.wait_until_running()
                yield item


class _Proxy:
    """A port whose calls go over a connection."""

    def __init__(self, connection: Connection, port: Any, name: str) -> None:
        self._connection, self._port, self._name = connection, port, name

    def __getattr__(self, attribute: str) -> Any:
        wrapped = self._wrap(attribute, getattr(self._port, attribute))
        setattr(self, attribute, wrapped)
        return wrapped

    def _wrap(self, attribute: str, method: Any) -> Any:
        connection, name = self._connection, self._name
        if (name, attribute) == ("status", "lease"):
            return lambda ttl_s: connection.etcd.open_lease(connection, ttl_s)
        if inspect.isasyncgenfunction(method):
            return lambda *args, **kwargs: connection.stream(name, method, args, kwargs)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await connection.call(name, attribute, method, args, kwargs)

        return call
