"""What befalls the platform: every kind of fault, and how each is mended.

A kind is counted when it strikes (``Network.struck``). Whatever was broken is mended after its time, or when peace
comes, whichever is first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from tests.simulation.world import NODES, World

PLACES: Final = [("lcm", "one"), ("lcm", "two"), ("guardian", "one"), ("guardian", "two")]
KINDS: Final = (
    "guardian crashes", "lcm crashes", "api crashes", "metrics crashes", "helper crashes", "guardian paused",
    "guardian paused beyond its lease", "lcm paused", "lcm paused beyond its lease", "hint lost", "hint doubled",
    "lease lost, holder runs", "slow keep-alives", "stale read", "clock jumps", "cut from jobs", "cut from status",
    "cut from cluster", "helper cut off", "job store away", "etcd away", "etcd wiped", "object store away",
    "metrics away", "node agent away", "node lost", "node cut off", "learner lost",
    "metrics paused", "metrics cut from status", "guardian paused before a call", "lcm paused before a call",
    *(f"{what}: {port}"
        for what in ("lost request", "lost answer", "late effect")
        for port in ("jobs", "status", "cluster")),
)  # fmt: skip
"""As they are counted when they strike."""


class Faults:
    def __init__(
        self, world: World, chance: random.Random, note: Callable[..., None], submit: Callable[[], None]
    ) -> None:
        """``submit``: somebody submits a job now."""
        self._world, self._chance, self._note, self._submit = world, chance, note, submit
        self._peace = asyncio.Event()
        self._mends: list[asyncio.Task[None]] = []
        self._pressing: dict[str, int] = {}
        self._kinds = self.kinds()

    def strikes(self, kind: str, *words: object) -> None:
        self._world.network.struck[kind] += 1
        self._note("FAULT", kind, *words)

    def later(self, seconds: float, mend: Callable[[], Any]) -> None:
        """What was broken is mended: then, or when peace comes."""

        async def wait() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._peace.wait()
            done = mend()
            if done is not None:
                await done

        self._mends.append(asyncio.create_task(wait()))

    def kinds(self) -> dict[str, Callable[[], Awaitable[None] | None]]:
        """Every kind."""
        return {
            "guardian crashes": lambda: self.crash("guardian"), "lcm crashes": lambda: self.crash("lcm"),
            "api crashes": self.api_crashes, "metrics crashes": self.metrics_crash,
            "helper crashes": self.helper_crashes, "node agent away": lambda: self.away("cluster"),
            "guardian paused": lambda: self.pause("guardian"), "lcm paused": lambda: self.pause("lcm"),
            "guardian stumbles": lambda: self.stumble("guardian"), "lcm stumbles": lambda: self.stumble("lcm"),
            "two leaders": self.two_leaders, "slow collector": self.slow_collector, "two guardians": self.two_guardians,
            "job store away": lambda: self.away("jobs"), "etcd away": self.etcd_away, "etcd wiped": self.etcd_wiped,
            "object store away": self.objects_away, "metrics away": self.metrics_away,
            "hints lost": lambda: self.hints("lost"), "hints doubled": lambda: self.hints("doubled"),
            "cut from job store": lambda: self.cut("jobs"), "cut from etcd": lambda: self.cut("status"),
            "cut from cluster": lambda: self.cut("cluster"), "helper cut off": self.helper_cut_off,
            "requests lost": lambda: self.arm("lost request"), "answers lost": lambda: self.arm("lost answer"),
            "late effects": lambda: self.arm("late effect"), "stale reads": self.stale_reads,
            "slow keep-alives": self.slow_keep_alives, "lease lost": self.lease_lost, "clock jumps": self.clock_jumps,
            "metrics paused": self.metrics_paused, "metrics cut from etcd": self.metrics_cut,
            "node lost": self.node_lost, "learner lost": self.learner_lost,
        }  # fmt: skip

    async def any(self) -> None:
        await self.strike(self._chance.choice(list(self._kinds)))

    async def strike(self, kind: str) -> None:
        result = self._kinds[kind]()
        if result is not None:
            await result

    def _one(self, service: str = "") -> tuple[str, str] | None:
        """A process that is alive."""
        there = [name for name in PLACES if name in self._world.alive and name[0].startswith(service)]
        return self._chance.choice(there) if there else None

    async def crash(self, service: str) -> None:
        name = self._one(service)
        if name is None:
            return
        self.strikes(f"{service} crashes", name[1])
        await self._world.kill(self._world.alive[name])
        self.later(self._chance.choice([0.1, 0.5, 4, 8]), lambda: self.revive(name))

    async def revive(self, name: tuple[str, str]) -> None:
        if name not in self._world.alive:
            self._note("starts", *name)
            await self._world.launch(*name)

    def api_crashes(self) -> None:
        """What it was asked is not answered; perhaps it was done all the same."""
        self.strikes("api crashes")
        self._world.api.armed[self._chance.choice(["lost request", "lost answer"])] = ("jobs", 0.0)
        self._cut_for(self._world.api, "jobs", self._chance.uniform(0.2, 2))

    def metrics_crash(self) -> None:
        """It knows nothing any more but what helpers tell it again."""
        self.strikes("metrics crashes")
        self._world.metrics.crash()
        self._metrics_away(self._chance.uniform(0.2, 2))

    def metrics_away(self) -> None:
        self.strikes("metrics away")
        self._metrics_away(self._chance.uniform(1, 8))

    def metrics_paused(self) -> None:
        wire = self._world.metrics.wire
        if wire.running.is_set():
            self.strikes("metrics paused")
            wire.running.clear()
            self.later(self._chance.uniform(1, 6), wire.running.set)

    def metrics_cut(self) -> None:
        self.strikes("metrics cut from status")
        self._cut_for(self._world.metrics.wire, "status", self._chance.uniform(1, 6))

    def _metrics_away(self, seconds: float) -> None:
        world, self._pressing["metrics"] = self._world, self._pressing.get("metrics", 0) + 1
        world.metrics.away = world.summaries.away = True

        def back() -> None:
            self._pressing["metrics"] -= 1
            world.metrics.away = world.summaries.away = self._pressing["metrics"] > 0

        self.later(seconds, back)

    def helper_crashes(self) -> None:
        if learners := self._world.crew.learners():
            learner = self._chance.choice(learners)
            if self._world.crew.crash_helper(learner):
                self.strikes("helper crashes", learner.job, learner.name)

    def helper_cut_off(self) -> None:
        if learners := self._world.crew.learners():
            learner, off = self._chance.choice(learners), self._world.crew.cut_off
            self.strikes("helper cut off", learner.job, learner.name)
            off.add(learner)
            self.later(self._chance.uniform(1, 8), lambda: off.discard(learner))

    def away(self, port: str, seconds: float = 0.0) -> None:
        kind = {"cluster": "node agent away", "jobs": "job store away", "status": "etcd away"}[port]
        self.strikes(kind)
        away, self._pressing[port] = self._world.network.away, self._pressing.get(port, 0) + 1
        away.add(port)

        def back() -> None:
            self._pressing[port] -= 1
            if not self._pressing[port]:
                away.discard(port)
                if port == "status":
                    self._world.etcd.come_back()
                if port == "cluster":
                    self._world.machines.notify("")

        self.later(seconds or self._chance.choice([0.5, 2, 5, 8]), back)

    def etcd_away(self) -> None:
        self.away("status")
        self._world.etcd.go_away()

    def etcd_wiped(self) -> None:
        self.strikes("etcd wiped")
        self._world.etcd.forget()

    def objects_away(self) -> None:
        self.strikes("object store away")
        crew, self._pressing["objects"] = self._world.crew, self._pressing.get("objects", 0) + 1
        crew.objects_away = True

        def back() -> None:
            self._pressing["objects"] -= 1
            crew.objects_away = self._pressing["objects"] > 0

        self.later(self._chance.uniform(1, 10), back)

    def hints(self, what: str) -> None:
        self._note("hints are", what)
        setattr(self._world.post, what, True)
        self.later(self._chance.uniform(2, 12), lambda: setattr(self._world.post, what, False))

    def cut(self, port: str) -> None:
        name = self._one()
        if name is not None:
            self.strikes(f"cut from {port}", *name)
            self._cut_for(self._world.wire_of(name), port, self._chance.choice([0.5, 2, 5, 8]))

    def _cut_for(self, wire: Any, port: str, seconds: float) -> None:
        wire.cut.add(port)
        self.later(seconds, lambda: wire.cut.discard(port))

    def pause(self, service: str) -> None:
        """SIGSTOP. Mostly for longer than the lease."""
        name = self._one(service)
        if name is None or not self._world.wire_of(name).running.is_set():
            return
        wire, seconds = self._world.wire_of(name), self._chance.choice([1, 3.5, 4, 6, 9])
        self.strikes(f"{service} paused" + (" beyond its lease" if seconds > 3 else ""), name[1], seconds)
        wire.running.clear()

        def goes_on() -> None:
            self._note("goes on", wire.name)
            wire.running.set()

        self.later(seconds, goes_on)

    def stumble(self, service: str) -> None:
        """Paused in the middle of what it does, for longer than its lease."""
        guardians = ("jobs.replace", "jobs.replace", "cluster.do", "cluster.do", "cluster.stop", "cluster.teardown")
        lcms = ("jobs.replace", "jobs.replace", "jobs.replace_dispatcher", "cluster.jobs")
        call = self._chance.choice(guardians if service == "guardian" else lcms)
        seconds = self._chance.choice([4, 5, 7])
        for name in PLACES:
            if name[0] == service and name in self._world.alive:
                self._world.wire_of(name).stumbles = (call, seconds)
                if self._chance.random() < 0.7:
                    break

    def two_leaders(self) -> None:
        """Whoever leads is paused between "I lead" and its admission; its successor once it has risen."""
        there = [name for name in PLACES if name[0] == "lcm" and name in self._world.alive]
        self._submit()
        for name in there:
            leads = self._world.alive[name].service.term > 0
            call = "after jobs.dispatcher" if leads else "cluster.capacity"
            self._world.wire_of(name).stumbles = (call, self._chance.uniform(4.5, 7))

    def slow_collector(self) -> None:
        """Who collects is paused between two looks, and jobs begin meanwhile, under its successor."""
        self._submit()
        for name in PLACES:
            if name[0] == "lcm" and name in self._world.alive and self._world.alive[name].service.term > 0:
                self._world.wire_of(name).stumbles = ("cluster.jobs", self._chance.uniform(5, 8))

    def two_guardians(self) -> None:
        """One is paused in front of a write; who takes over from it, just after its claim."""
        there = [name for name in PLACES if name[0] == "guardian" and name in self._world.alive]
        self._chance.shuffle(there)
        for name, call in zip(there, ("jobs.replace", "after jobs.replace"), strict=False):
            self._world.wire_of(name).stumbles = (call, self._chance.uniform(4.5, 7))

    def arm(self, kind: str) -> None:
        """It strikes whom it may, at the next call that writes there."""
        port, seconds = self._chance.choice(["jobs", "status", "cluster"]), self._chance.choice([0.5, 2, 5])
        for name in PLACES:
            if name in self._world.alive and (port == "jobs" or name[0] == "guardian"):
                self._world.wire_of(name).armed[kind] = (port, seconds)

    def stale_reads(self) -> None:
        for name in PLACES:
            if name in self._world.alive:
                wire = self._world.wire_of(name)
                wire.stale = self._chance.choice([1, 2, 5])
                self.later(self._chance.uniform(2, 8), partial(setattr, wire, "stale", 0))

    def slow_keep_alives(self) -> None:
        """Answers that are long on their way; then none."""
        name = self._one()
        if name is not None:
            wire = self._world.wire_of(name)
            self.strikes("slow keep-alives", *name)
            wire.slow_s = self._chance.uniform(0.3, 0.9)
            self.later(self._chance.uniform(2, 5), lambda: setattr(wire, "slow_s", 0.0))
            self.later(self._chance.uniform(1.5, 3), lambda: self._cut_for(wire, "status", 4))

    def lease_lost(self) -> None:
        """etcd ends it; its holder lives, and learns of it later."""
        name = self._one()
        lease = self._world.alive[name].membership.lease if name is not None else None
        if name is not None and lease is not None:
            self.strikes("lease lost, holder runs", *name)
            self._cut_for(self._world.wire_of(name), "status", 5)

    def clock_jumps(self) -> None:
        name = self._one()
        if name is not None:
            clock = self._world.clock_of(name)
            clock.wrong_ms = self._chance.choice([-3_600_000, -30_000, -2_000, 2_000, 30_000, 240_000])
            self.strikes("clock jumps", *name, clock.wrong_ms)
            self.later(self._chance.uniform(1, 10), lambda: setattr(clock, "wrong_ms", 0))

    def node_lost(self) -> None:
        node = self._chance.choice(NODES).name
        cut_off = self._chance.random() < 0.6
        self.strikes("node cut off" if cut_off else "node lost", node)
        self._world.machines.lose(node, cut_off=cut_off)
        self.later(self._chance.uniform(0.5, 8), lambda: self._world.machines.find(node))

    def learner_lost(self) -> None:
        learners = [one for one in self._world.crew.learners() if one.exit is None]
        if learners:
            learner = self._chance.choice(learners)
            self.strikes("learner lost", learner.job, learner.name)
            if self._chance.random() < 0.5 and learner.started is not None:
                self._world.checker.ends_by_itself(learner, None, lost=True)
                learner.end(None, lost=True)
            else:
                self._world.machines.vanish(learner)

    # --- peace -----------------------------------------------------------------------------

    async def end(self) -> None:
        """No more faults: all is mended that can be, and a service of each kind runs."""
        self._peace.set()
        wires = [self._world.api, self._world.metrics.wire, *(self._world.wire_of(name) for name in self._world.alive)]
        for wire in wires:
            wire.armed.clear()
            wire.stumbles = ("", 0.0)
            wire.running.set()
        while any(not mend.done() for mend in self._mends):
            await asyncio.gather(*self._mends)
        for name in PLACES[::2]:
            await self.revive(name)
