"""The faults of the simulation: every kind, and its end.

A fault is counted when it takes effect (``Network.fault_counts``). It ends after its time, or when ``end`` is called.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from services.core.domain.codec import dump
from services.core.domain.errors import Unavailable
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.status import Phase
from services.core.domain.status_keys import learner_key
from tests.simulation.simulated_platform import NODES, SimulatedPlatform

PLACES: Final = [("lcm", "one"), ("lcm", "two"), ("guardian", "one"), ("guardian", "two")]
KINDS: Final = (
    "guardian crashes",
    "lcm crashes",
    "api crashes",
    "metrics crashes",
    "helper crashes",
    "guardian paused",
    "guardian paused beyond its lease",
    "lcm paused",
    "lcm paused beyond its lease",
    "hint lost",
    "hint doubled",
    "lease lost, holder runs",
    "slow keep-alives",
    "stale read",
    "clock jumps",
    "cut from jobs",
    "cut from status",
    "cut from cluster",
    "helper cut off",
    "job store away",
    "etcd away",
    "etcd wiped",
    "object store away",
    "metrics away",
    "node agent away",
    "node lost",
    "node cut off",
    "learner lost",
    "report forged",
    "metrics paused",
    "metrics cut from status",
    "guardian paused before a call",
    "lcm paused before a call",
    *(
        f"{what}: {port}"
        for what in ("lost request", "lost answer", "late effect")
        for port in ("jobs", "status", "cluster")
    ),
)
"""The kinds as they are counted."""


class FaultInjector:
    """Injects faults into a simulated platform."""

    def __init__(
        self, platform: SimulatedPlatform, chance: random.Random, note: Callable[..., None], submit: Callable[[], None]
    ) -> None:
        """``note``: writes a line to the trace. ``submit``: submits a job."""
        self._platform, self._chance, self._note, self._submit = platform, chance, note, submit
        self._ending = asyncio.Event()
        self._repairs: list[asyncio.Task[None]] = []
        self._active: dict[str, int] = {}
        """Server -> how many faults make it unavailable now."""
        self._kinds = self.kinds()

    def count(self, kind: str, *words: object) -> None:
        """Counts a fault that takes effect, and writes it to the trace."""
        self._platform.network.fault_counts[kind] += 1
        self._note("FAULT", kind, *words)

    def later(self, seconds: float, repair: Callable[[], Any]) -> None:
        """Calls ``repair`` after so many seconds, or when the faults end."""

        async def wait() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._ending.wait()
            result = repair()
            if result is not None:
                await result

        self._repairs.append(asyncio.create_task(wait()))

    def kinds(self) -> dict[str, Callable[[], Awaitable[None] | None]]:
        """Returns name -> function that injects a fault of this kind, now or at a later call."""
        return {
            "guardian crashes": lambda: self.crash("guardian"),
            "lcm crashes": lambda: self.crash("lcm"),
            "api crashes": self.api_crashes,
            "metrics crashes": self.metrics_crashes,
            "helper crashes": self.helper_crashes,
            "node agent away": lambda: self.away("cluster"),
            "guardian paused": lambda: self.pause("guardian"),
            "lcm paused": lambda: self.pause("lcm"),
            "guardian paused at a call": lambda: self.pause_at_call("guardian"),
            "lcm paused at a call": lambda: self.pause_at_call("lcm"),
            "two leaders": self.two_leaders,
            "slow collector": self.slow_collector,
            "two guardians": self.two_guardians,
            "job store away": lambda: self.away("jobs"),
            "etcd away": self.etcd_away,
            "etcd wiped": self.etcd_wiped,
            "object store away": self.objects_away,
            "metrics away": self.metrics_away,
            "hints lost": lambda: self.hints("lost"),
            "hints doubled": lambda: self.hints("doubled"),
            "cut from job store": lambda: self.cut("jobs"),
            "cut from etcd": lambda: self.cut("status"),
            "cut from cluster": lambda: self.cut("cluster"),
            "helper cut off": self.helper_cut_off,
            "requests lost": lambda: self.arm("lost request"),
            "answers lost": lambda: self.arm("lost answer"),
            "late effects": lambda: self.arm("late effect"),
            "stale reads": self.stale_reads,
            "slow keep-alives": self.slow_keep_alives,
            "lease lost": self.lease_lost,
            "clock jumps": self.clock_jumps,
            "metrics paused": self.metrics_paused,
            "metrics cut from etcd": self.metrics_cut,
            "node lost": self.node_lost,
            "learner lost": self.learner_lost,
            "report forged": self.report_forged,
        }

    async def inject_any(self) -> None:
        """Injects a fault of a random kind."""
        await self.inject(self._chance.choice(list(self._kinds)))

    async def inject(self, kind: str) -> None:
        """Injects a fault of this kind."""
        result = self._kinds[kind]()
        if result is not None:
            await result

    def _random_process(self, service: str = "") -> tuple[str, str] | None:
        """Returns (service, place) of a live process; None where there is none."""
        alive = [name for name in PLACES if name in self._platform.alive and name[0].startswith(service)]
        return self._chance.choice(alive) if alive else None

    async def crash(self, service: str) -> None:
        name = self._random_process(service)
        if name is None:
            return
        self.count(f"{service} crashes", name[1])
        await self._platform.kill(self._platform.alive[name])
        self.later(self._chance.choice([0.1, 0.5, 4, 8]), lambda: self.restart(name))

    async def restart(self, name: tuple[str, str]) -> None:
        if name not in self._platform.alive:
            self._note("starts", *name)
            await self._platform.launch(*name)

    def api_crashes(self) -> None:
        """A request is not answered; it may have taken effect. Then the api cannot reach the job store for a while."""
        self.count("api crashes")
        self._platform.api.armed[self._chance.choice(["lost request", "lost answer"])] = ("jobs", 0.0)
        self._cut_for(self._platform.api, "jobs", self._chance.uniform(0.2, 2))

    def metrics_crashes(self) -> None:
        """The service restarts with what is in etcd only."""
        self.count("metrics crashes")
        self._platform.metrics.crash()
        self._metrics_away(self._chance.uniform(0.2, 2))

    def metrics_away(self) -> None:
        self.count("metrics away")
        self._metrics_away(self._chance.uniform(1, 8))

    def metrics_paused(self) -> None:
        connection = self._platform.metrics.connection
        if connection.running.is_set():
            self.count("metrics paused")
            connection.running.clear()
            self.later(self._chance.uniform(1, 6), connection.running.set)

    def metrics_cut(self) -> None:
        self.count("metrics cut from status")
        self._cut_for(self._platform.metrics.connection, "status", self._chance.uniform(1, 6))

    def _metrics_away(self, seconds: float) -> None:
        platform, self._active["metrics"] = self._platform, self._active.get("metrics", 0) + 1
        platform.metrics.away = platform.summaries.away = True

        def back() -> None:
            self._active["metrics"] -= 1
            platform.metrics.away = platform.summaries.away = self._active["metrics"] > 0

        self.later(seconds, back)

    def helper_crashes(self) -> None:
        if learners := self._platform.simulator.learners():
            learner = self._chance.choice(learners)
            if self._platform.simulator.crash_helper(learner):
                self.count("helper crashes", learner.job, learner.name)

    def helper_cut_off(self) -> None:
        if learners := self._platform.simulator.learners():
            learner, cut_off = self._chance.choice(learners), self._platform.simulator.cut_off
            self.count("helper cut off", learner.job, learner.name)
            cut_off.add(learner)
            self.later(self._chance.uniform(1, 8), lambda: cut_off.discard(learner))

    def away(self, port: str, seconds: float = 0.0) -> None:
        kind = {"cluster": "node agent away", "jobs": "job store away", "status": "etcd away"}[port]
        self.count(kind)
        away, self._active[port] = self._platform.network.away, self._active.get(port, 0) + 1
        away.add(port)

        def back() -> None:
            self._active[port] -= 1
            if not self._active[port]:
                away.discard(port)
                if port == "status":
                    self._platform.etcd.come_back()
                if port == "cluster":
                    self._platform.simulated_cluster.notify("")

        self.later(seconds or self._chance.choice([0.5, 2, 5, 8]), back)

    def etcd_away(self) -> None:
        self.away("status")
        self._platform.etcd.go_away()

    def etcd_wiped(self) -> None:
        self.count("etcd wiped")
        self._platform.etcd.forget()

    def objects_away(self) -> None:
        self.count("object store away")
        simulator, self._active["objects"] = self._platform.simulator, self._active.get("objects", 0) + 1
        simulator.objects_away = True

        def back() -> None:
            self._active["objects"] -= 1
            simulator.objects_away = self._active["objects"] > 0

        self.later(self._chance.uniform(1, 10), back)

    def hints(self, what: str) -> None:
        self._note("hints are", what)
        setattr(self._platform.hint_bus, what, True)
        self.later(self._chance.uniform(2, 12), lambda: setattr(self._platform.hint_bus, what, False))

    def cut(self, port: str) -> None:
        name = self._random_process()
        if name is not None:
            self.count(f"cut from {port}", *name)
            self._cut_for(self._platform.connection_of(name), port, self._chance.choice([0.5, 2, 5, 8]))

    def _cut_for(self, connection: Any, port: str, seconds: float) -> None:
        connection.cut.add(port)
        self.later(seconds, lambda: connection.cut.discard(port))

    def pause(self, service: str) -> None:
        """Pauses a process as SIGSTOP does, mostly for longer than its lease."""
        name = self._random_process(service)
        if name is None or not self._platform.connection_of(name).running.is_set():
            return
        connection, seconds = self._platform.connection_of(name), self._chance.choice([1, 3.5, 4, 6, 9])
        self.count(f"{service} paused" + (" beyond its lease" if seconds > 3 else ""), name[1], seconds)
        connection.running.clear()

        def resume() -> None:
            self._note("continues", connection.name)
            connection.running.set()

        self.later(seconds, resume)

    def pause_at_call(self, service: str) -> None:
        """Pauses processes of a service before a certain call, for longer than their leases."""
        guardians = ("jobs.replace", "jobs.replace", "cluster.do", "cluster.do", "cluster.stop", "cluster.teardown")
        lcms = ("jobs.replace", "jobs.replace", "jobs.replace_dispatcher", "cluster.jobs")
        call = self._chance.choice(guardians if service == "guardian" else lcms)
        seconds = self._chance.choice([4, 5, 7])
        for name in PLACES:
            if name[0] == service and name in self._platform.alive:
                self._platform.connection_of(name).pause_at = (call, seconds)
                if self._chance.random() < 0.7:
                    break

    def two_leaders(self) -> None:
        """Pauses the leading dispatcher between its check that it leads and its admission, and then its successor."""
        alive = [name for name in PLACES if name[0] == "lcm" and name in self._platform.alive]
        self._submit()
        for name in alive:
            leads = self._platform.alive[name].service.term > 0
            call = "after jobs.dispatcher" if leads else "cluster.capacity"
            self._platform.connection_of(name).pause_at = (call, self._chance.uniform(4.5, 7))

    def slow_collector(self) -> None:
        """Pauses the collector between two reads; meanwhile jobs begin under another dispatcher."""
        self._submit()
        for name in PLACES:
            if name[0] == "lcm" and name in self._platform.alive and self._platform.alive[name].service.term > 0:
                self._platform.connection_of(name).pause_at = ("cluster.jobs", self._chance.uniform(5, 8))

    def two_guardians(self) -> None:
        """Pauses one Guardian before a write, and the one that takes over after its claim."""
        alive = [name for name in PLACES if name[0] == "guardian" and name in self._platform.alive]
        self._chance.shuffle(alive)
        for name, call in zip(alive, ("jobs.replace", "after jobs.replace"), strict=False):
            self._platform.connection_of(name).pause_at = (call, self._chance.uniform(4.5, 7))

    def arm(self, kind: str) -> None:
        """Arms a fault for the next write of each process to a random port."""
        port, seconds = self._chance.choice(["jobs", "status", "cluster"]), self._chance.choice([0.5, 2, 5])
        for name in PLACES:
            if name in self._platform.alive and (port == "jobs" or name[0] == "guardian"):
                self._platform.connection_of(name).armed[kind] = (port, seconds)

    def stale_reads(self) -> None:
        for name in PLACES:
            if name in self._platform.alive:
                connection = self._platform.connection_of(name)
                connection.stale = self._chance.choice([1, 2, 5])
                self.later(self._chance.uniform(2, 8), partial(setattr, connection, "stale", 0))

    def slow_keep_alives(self) -> None:
        """Delays the answers to a process's keep-alives, then cuts it off from etcd."""
        name = self._random_process()
        if name is not None:
            connection = self._platform.connection_of(name)
            self.count("slow keep-alives", *name)
            connection.keep_alive_delay_s = self._chance.uniform(0.3, 0.9)
            self.later(self._chance.uniform(2, 5), lambda: setattr(connection, "keep_alive_delay_s", 0.0))
            self.later(self._chance.uniform(1.5, 3), lambda: self._cut_for(connection, "status", 4))

    def lease_lost(self) -> None:
        """Cuts a process off from etcd for longer than its lease."""
        name = self._random_process()
        lease = self._platform.alive[name].membership.lease if name is not None else None
        if name is not None and lease is not None:
            self.count("lease lost, holder runs", *name)
            self._cut_for(self._platform.connection_of(name), "status", 5)

    def clock_jumps(self) -> None:
        name = self._random_process()
        if name is not None:
            clock = self._platform.clock_of(name)
            clock.wrong_ms = self._chance.choice([-3_600_000, -30_000, -2_000, 2_000, 30_000, 240_000])
            self.count("clock jumps", *name, clock.wrong_ms)
            self.later(self._chance.uniform(1, 10), lambda: setattr(clock, "wrong_ms", 0))

    def node_lost(self) -> None:
        node = self._chance.choice(NODES).name
        cut_off = self._chance.random() < 0.6
        self.count("node cut off" if cut_off else "node lost", node)
        self._platform.simulated_cluster.lose_node(node, cut_off=cut_off)
        self.later(self._chance.uniform(0.5, 8), lambda: self._platform.simulated_cluster.return_node(node))

    def learner_lost(self) -> None:
        learners = [learner for learner in self._platform.simulator.learners() if learner.exit is None]
        if learners:
            learner = self._chance.choice(learners)
            self.count("learner lost", learner.job, learner.name)
            if self._chance.random() < 0.5 and learner.started is not None:
                self._platform.checker.ends_by_itself(learner, None, lost=True)
                learner.end(None, lost=True)
            else:
                self._platform.simulated_cluster.lose_learner(learner)

    async def report_forged(self) -> None:
        """Writes to etcd that a running learner has succeeded and stored, as a report that no later one replaces."""
        learners = [
            learner
            for learner in self._platform.simulator.learners()
            if learner.started is not None and learner.exit is None
        ]
        if not learners:
            return
        learner, now = self._chance.choice(learners), self._platform.simulated_cluster.now_ms()
        forged = LearnerStatus(
            name=learner.name,
            role=learner.plan.role,
            rank=learner.plan.rank,
            attempt=learner.attempt,
            seq=10**9,
            phase=Phase.STORED,
            times={phase.value: now for phase in Phase},
            exit=Exit(time=now, code=0),
        )
        with suppress(Unavailable):
            await self._platform.etcd.put(learner_key(learner.job, learner.name), json.dumps(dump(forged)))
            self._platform.checker.report_forged(learner)
            self.count("report forged", learner.job, learner.name)

    # --- the end ---------------------------------------------------------------------------

    async def end(self) -> None:
        """Ends all faults and starts a process of each service."""
        self._ending.set()
        connections = [
            self._platform.api,
            self._platform.metrics.connection,
            *(self._platform.connection_of(name) for name in self._platform.alive),
        ]
        for connection in connections:
            connection.armed.clear()
            connection.pause_at = ("", 0.0)
            connection.running.set()
        while any(not repair.done() for repair in self._repairs):
            await asyncio.gather(*self._repairs)
        for name in PLACES[::2]:
            await self.restart(name)
