"""One process's wire to its ports: everything that can befall a call, and a process that is stopped in the middle.

A call travels, takes effect, and its answer travels back; between any two of these the process may be killed, paused
(SIGSTOP: whatever it had in flight goes on afterwards, with its old beliefs) or cut off. What it computes is its own,
but nothing it does reaches anybody except through here.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from services.core.adapters.etcd.lease import EtcdLease
from services.core.domain.errors import Unavailable
from tests.simulation.stores import Etcd, Ledger

Port = TypeVar("Port")
_SHORT_S: Final = 0.002
_LONG_S: Final = 0.03
_TIMEOUT_S: Final = 1.0
_POLL_S: Final = 0.2
WRITES: Final = frozenset({
    "jobs.insert", "jobs.replace", "jobs.append_history", "jobs.replace_dispatcher", "status.put", "status.put_if",
    "status.delete", "status.delete_prefix", "cluster.do", "cluster.stop", "cluster.teardown",
})  # fmt: skip
FENCED: Final = frozenset({"jobs.replace", "jobs.replace_dispatcher"})


@dataclass
class Network:
    """What all wires share."""

    chance: random.Random
    struck: Counter[str] = field(default_factory=Counter)
    """Faults that did happen, by kind."""
    away: set[str] = field(default_factory=set)
    """Ports whose servers answer nobody."""
    actor: str = ""
    """The process whose call is carried out at this moment."""
    told: Callable[..., None] = lambda *_: None
    late: list[asyncio.Task[None]] = field(default_factory=list)
    """Effects that are still on their way."""


@dataclass
class Wire:
    name: str
    network: Network
    ledger: Ledger
    etcd: Etcd
    cut: set[str] = field(default_factory=set)
    """Ports this process cannot reach."""
    armed: dict[str, tuple[str, float]] = field(default_factory=dict)
    """What happens to the next call that can suffer it: lost request, lost answer, late effect -> (which calls, s)."""
    stumbles: tuple[str, float] = ("", 0.0)
    """Before the next call of this name (``after ...``: before its answer is read) the process is paused, so long."""
    stale: int = 0
    """By how many commits a ``find`` may be behind."""
    slow_s: float = 0.0
    """So long does the answer to a keep-alive take."""
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    leases: list[EtcdLease] = field(default_factory=list)
    running: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.running.set()
        self._acknowledged = 0

    def wrap(self, port: Port, name: str) -> Port:
        """The port as this process reaches it. (Hints go by the post, which loses them by itself.)"""
        return port if name == "hints" else cast("Port", _Proxy(self, port, name))

    async def go_on(self) -> None:
        """Returns once the process runs; never, where it is dead."""
        while not self.running.is_set():
            await self.running.wait()
        if self.dead.is_set():
            raise asyncio.CancelledError

    def reaches(self, port: str) -> bool:
        return port not in self.cut and port not in self.network.away

    async def call(self, port: str, what: str, method: Any, args: Any, kwargs: Any) -> Any:
        await self.go_on()
        name = f"{port}.{what}"
        if name == self.stumbles[0]:
            self._stumble(name)
            await self.go_on()
        await self._travel()
        if not self.reaches(port):
            await asyncio.sleep(self.network.chance.choice([0.01, 0.2, _TIMEOUT_S]))
            await self.go_on()
            raise Unavailable(f"{port} does not answer")
        suffers, seconds = self._suffers(name)
        if suffers == "late effect":
            late = asyncio.get_running_loop().create_task(self._later(name, seconds, method, args, kwargs))
            self.network.late.append(late)
            await asyncio.sleep(_TIMEOUT_S)
        if suffers in {"lost request", "late effect"}:
            await self.go_on()
            raise Unavailable("the connection was cut")
        result = await self._effect(name, method, args, kwargs)
        if suffers == "lost answer":
            raise Unavailable("the connection was cut before the answer came")
        if name == "status.keep_alive" and self.slow_s:
            await asyncio.sleep(self.slow_s)
        await self._travel()
        if f"after {name}" == self.stumbles[0]:
            self._stumble(f"the answer of {name}")
        await self.go_on()
        if name in FENCED:
            self._acknowledged = self.ledger.commits
        return result

    def _stumble(self, name: str) -> None:
        """SIGSTOP, at the worst moment: what it read is old when it goes on, and what it was about to do, it does."""
        seconds, self.stumbles = self.stumbles[1], ("", 0.0)
        service = self.name.partition("-")[0]
        self.network.struck[f"{service} paused before a call"] += 1
        self.network.told("FAULT paused before", name, self.name, seconds)
        self.running.clear()
        asyncio.get_running_loop().call_later(seconds, self.running.set)

    async def _effect(self, name: str, method: Any, args: Any, kwargs: Any) -> Any:
        if name == "jobs.find" and self.stale:
            at = max(self._acknowledged, self.ledger.commits - self.stale)
            if at < self.ledger.commits:
                self.network.struck["stale read"] += 1
                return await self.ledger.find_stale(*args, at=at, **kwargs)
        self.network.actor = self.name
        return await method(*args, **kwargs)

    async def _later(self, name: str, seconds: float, method: Any, args: Any, kwargs: Any) -> None:
        """It was on its way, and arrives when nobody waits for it any more."""
        await asyncio.sleep(seconds)
        self.network.told("late effect of", self.name, name)
        try:
            await self._effect(name, method, args, kwargs)
        except Exception as error:  # noqa: BLE001 - refused, most often: nobody hears of it
            self.network.told("refused", type(error).__name__)

    def _suffers(self, name: str) -> tuple[str, float]:
        for kind, (which, seconds) in self.armed.items():
            if name in WRITES and name.startswith(which):
                del self.armed[kind]
                self.network.struck[f"{kind}: {name.partition('.')[0]}"] += 1
                self.network.told(kind, self.name, name)
                return kind, seconds
        return "", 0.0

    async def _travel(self) -> None:
        dice = self.network.chance.random()
        if dice > 0.4:
            await asyncio.sleep(self.network.chance.expovariate(1 / (_SHORT_S if dice < 0.95 else _LONG_S)))

    async def stream(self, port: str, method: Any, args: Any, kwargs: Any) -> AsyncGenerator[Any]:
        async with aclosing(method(*args, **kwargs)) as source:
            async for each in source:
                await self._travel()
                await self.go_on()
                while not self.reaches(port):
                    await asyncio.sleep(_POLL_S)
                    await self.go_on()
                yield each


class _Proxy:
    def __init__(self, wire: Wire, port: Any, name: str) -> None:
        self._wire, self._port, self._name = wire, port, name

    def __getattr__(self, attribute: str) -> Any:
        stand_in = self._stand_in(attribute, getattr(self._port, attribute))
        setattr(self, attribute, stand_in)
        return stand_in

    def _stand_in(self, attribute: str, found: Any) -> Any:
        wire, name = self._wire, self._name
        if (name, attribute) == ("status", "lease"):
            return lambda ttl_s: wire.etcd.open_lease(wire, ttl_s)
        if inspect.isasyncgenfunction(found):
            return lambda *args, **kwargs: wire.stream(name, found, args, kwargs)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await wire.call(name, attribute, found, args, kwargs)

        return call
