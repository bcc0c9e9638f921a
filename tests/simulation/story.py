"""One seed: jobs, what their owners want meanwhile, and the faults that befall the platform; then peace, and the end.

What happens is decided by the seed alone. A fault counts when it strikes: an answer that was to be lost and never came
does not. The story goes on until at least three did.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from services.core.domain.errors import NoSpace
from services.core.domain.status import Desired
from tests.simulation.checker import Breach, Declared
from tests.simulation.world import NODES, World
from tests.testbed.helpers_in_memory import Fate

STORY_S: Final = 16.0
PEACE_S: Final = 30.0
"""R8: within so long after the last fault every job has become what its owner wants."""
CLEAN_S: Final = 30.0
"""R5: within so long after that nothing is left."""
MOST_STORY_S: Final = 60.0
FAULTS_EACH: Final = 3
_PLACES: Final = [("lcm", "one"), ("lcm", "two"), ("guardian", "one"), ("guardian", "two")]
_TOLD: Final = 120
KINDS: Final = (
    "guardian crashes", "lcm crashes", "api crashes", "metrics crashes", "helper crashes", "guardian paused",
    "guardian paused beyond its lease", "lcm paused", "lcm paused beyond its lease", "hint lost", "hint doubled",
    "lease lost, holder runs", "slow keep-alives", "stale read", "clock jumps", "cut from jobs", "cut from status",
    "cut from cluster", "helper cut off", "job store away", "etcd away", "etcd wiped", "object store away",
    "metrics away", "node agent away", "node lost", "node cut off", "learner lost",
    "metrics paused", "metrics cut from status",
    *(f"{what}: {port}"
        for what in ("lost request", "lost answer", "late effect")
        for port in ("jobs", "status", "cluster")),
)  # fmt: skip
"""As they are counted when they strike."""


@dataclass
class Told:
    """What became of one seed."""

    seed: int
    digest: str
    faults: Counter[str]
    wishes: Counter[str]
    jobs: int
    breaches: list[Breach]
    last: list[str]
    settled_s: float
    """From the last fault until every job was at rest."""


@dataclass
class Trace:
    """Everything that was noted: its digest, and the last lines."""

    clock: Callable[[], float]
    last: deque[str] = field(default_factory=lambda: deque(maxlen=_TOLD))
    all: list[str] | None = None
    _digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))

    def note(self, *words: object) -> None:
        line = f"{self.clock():9.4f}  {' '.join(str(word) for word in words)}"
        self.last.append(line)
        self._digest.update(line.encode())
        if self.all is not None:
            self.all.append(line)

    @property
    def digest(self) -> str:
        return str(self._digest.hexdigest())


class Story:
    """Call ``tell`` once."""

    def __init__(self, seed: int, home: Path, *, whole: bool = False) -> None:
        """``whole``: every line is kept."""
        loop = asyncio.get_running_loop()
        random.seed(f"jitter {seed}")  # of clients that jitter by themselves: etcd's lease
        self.seed, self.chance = seed, random.Random(f"story {seed}")
        self.world = World(seed, home)
        self.trace = Trace(loop.time, all=[] if whole else None)
        self.world.network.told = self.trace.note
        self.world.checker.told = self.trace.note
        self.jobs: list[str] = []
        self.wishes: Counter[str] = Counter()
        self.peace = False
        self._loop = loop
        self._mends: list[asyncio.Task[None]] = []
        self._requests: list[asyncio.Task[Any]] = []
        self._pressing: dict[str, int] = {}

    @property
    def struck(self) -> Counter[str]:
        return self.world.network.struck

    async def tell(self) -> Told:
        for name in _PLACES if self.chance.random() < 0.5 else _PLACES[::2]:
            await self.world.launch(*name)
        # One kind is the seed's own, in turn: so each kind comes often, whatever the others' weights.
        own = list(self.faults())[self.seed % len(self.faults())]
        acts: list[tuple[float, Callable[[], Awaitable[None] | None]]] = [
            (self.chance.uniform(0, 0.5 * STORY_S), self.submit) for _ in range(self.chance.randint(2, 4))
        ]
        acts += [(self.chance.uniform(1, STORY_S), self.wish) for _ in range(self.chance.randint(0, 4))]
        acts += [(self.chance.uniform(0.5, STORY_S - 4), self.faults()[own])]
        acts += [(self.chance.uniform(0.5, STORY_S), self.any_fault) for _ in range(self.chance.randint(3, 6))]
        acts.sort(key=lambda act: act[0])
        for at, act in acts:
            await asyncio.sleep(max(0.0, at - self._loop.time()))
            await self._do(act)
            if self.world.checker.breaches:
                break
        while sum(self.struck.values()) < FAULTS_EACH and self._loop.time() < MOST_STORY_S:
            await asyncio.sleep(1)
            await self._do(self.any_fault)
        settled = await self.settle()
        told = Told(
            self.seed, self.trace.digest, self.struck, self.wishes, len(self.jobs), self.world.checker.breaches,
            list(self.trace.last), settled,
        )  # fmt: skip
        await self.world.close()
        return told

    async def _do(self, act: Callable[[], Awaitable[None] | None]) -> None:
        result = act()
        if result is not None:
            await result

    def strikes(self, kind: str, *words: object) -> None:
        self.struck[kind] += 1
        self.trace.note("FAULT", kind, *words)

    def later(self, seconds: float, mend: Callable[[], Any]) -> None:
        """What was broken is mended: then, or when peace comes."""

        async def wait() -> None:
            end = self._loop.time() + seconds
            while self._loop.time() < end and not self.peace:  # noqa: ASYNC110 - peace is no event of the world
                await asyncio.sleep(0.25)
            done = mend()
            if done is not None:
                await done

        self._mends.append(asyncio.create_task(wait()))

    # --- people ---------------------------------------------------------------------------

    def submit(self) -> None:
        self._requests.append(asyncio.create_task(self._submit(len(self._requests))))

    async def _submit(self, number: int) -> None:
        chance = random.Random(f"job {self.seed} {number}")
        roles: dict[str, dict[str, Any]] = {"worker": {"count": chance.choice([1, 1, 2, 2, 3])}}
        if chance.random() < 0.25:
            roles["ps"] = {"count": 1}
            if chance.random() < 0.5:
                roles["worker"]["decides"] = True
        if chance.random() < 0.1:
            roles["worker"]["on_failure"] = "ignore"
        count = sum(one["count"] for one in roles.values())
        cpus, gpus = chance.choice([1, 2, 4]), chance.choice([0, 0, 1, 2 if count < 3 else 1])
        retries = chance.choice([0, 1, 1, 2])
        spec = {
            "name": "digits", "command": "python train.py", "roles": roles, "grace": "1s", "store_timeout": "6s",
            "retries": {"max": retries, "backoff": "500ms"},
            "resources": {"cpus": cpus, "gpus": gpus, "memory": "1GB"},
        }  # fmt: skip
        names = [f"{role}-{index}" for role, one in roles.items() for index in range(one["count"])]
        decides = [role for role, one in roles.items() if one.get("decides")] or list(roles)
        refused = chance.random() < 0.08
        declared = Declared(
            learners=dict.fromkeys(names, (cpus, gpus)),
            deciding=[name for name in names if name.rpartition("-")[0] in decides],
            ignored=[name for name in names if "on_failure" in roles[name.rpartition("-")[0]]],
            retries=retries, grace_s=1, store_s=6, refused=refused,
        )  # fmt: skip
        job_id = await self.world.submit_job(spec, declared)
        for name in names:
            for attempt in range(1, 9):
                self.world.crew.fates[job_id, name, attempt] = _fate(chance)
        if refused:
            step = chance.choice(self.world.machines.steps())
            self.world.machines.refuse(step, NoSpace("the disk is full"), attempt=1, job=job_id)
        self.jobs.append(job_id)
        self.trace.note("submitted", job_id, names, f"{cpus} CPUs, {gpus} GPUs each")

    def wish(self) -> None:
        if self.jobs:
            job_id = self.chance.choice(self.jobs)
            wish = self.chance.choice(["halt", "halt", "run", "kill", "delete"])
            self._requests.append(asyncio.create_task(self._wish(job_id, wish)))

    async def _wish(self, job_id: str, wish: str) -> None:
        world = self.world
        taken = await (world.delete(job_id) if wish == "delete" else world.wish_for(job_id, Desired(wish)))
        self.wishes[wish] += taken
        self.trace.note("wish", wish, job_id, "taken" if taken else "refused")

    # --- faults ---------------------------------------------------------------------------

    def faults(self) -> dict[str, Callable[[], Awaitable[None] | None]]:
        """Every kind."""
        return {
            "guardian crashes": lambda: self.crash("guardian"), "lcm crashes": lambda: self.crash("lcm"),
            "api crashes": self.api_crashes, "metrics crashes": self.metrics_crash,
            "helper crashes": self.helper_crashes, "node agent away": lambda: self.away("cluster"),
            "guardian paused": lambda: self.pause("guardian"), "lcm paused": lambda: self.pause("lcm"),
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

    async def any_fault(self) -> None:
        await self._do(self.chance.choice(list(self.faults().values())))

    def _one(self, service: str = "") -> tuple[str, str] | None:
        """A process that is alive."""
        there = [name for name in _PLACES if name in self.world.alive and name[0].startswith(service)]
        return self.chance.choice(there) if there else None

    async def crash(self, service: str) -> None:
        name = self._one(service)
        if name is None:
            return
        self.strikes(f"{service} crashes", name[1])
        await self.world.kill(self.world.alive[name])
        self.later(self.chance.choice([0.1, 0.5, 4, 8]), lambda: self._revive(name))

    async def _revive(self, name: tuple[str, str]) -> None:
        if name not in self.world.alive:
            self.trace.note("starts", *name)
            await self.world.launch(*name)

    def api_crashes(self) -> None:
        """What it was asked is not answered; perhaps it was done all the same."""
        self.strikes("api crashes")
        self.world.api.armed[self.chance.choice(["lost request", "lost answer"])] = ("jobs", 0.0)
        self._cut_for(self.world.api, "jobs", self.chance.uniform(0.2, 2))

    def metrics_crash(self) -> None:
        """It knows nothing any more but what helpers tell it again."""
        self.strikes("metrics crashes")
        self.world.metrics.crash()
        self._metrics_away(self.chance.uniform(0.2, 2))

    def metrics_away(self) -> None:
        self.strikes("metrics away")
        self._metrics_away(self.chance.uniform(1, 8))

    def metrics_paused(self) -> None:
        wire = self.world.metrics.wire
        if wire.running.is_set():
            self.strikes("metrics paused")
            wire.running.clear()
            self.later(self.chance.uniform(1, 6), wire.running.set)

    def metrics_cut(self) -> None:
        self.strikes("metrics cut from status")
        self._cut_for(self.world.metrics.wire, "status", self.chance.uniform(1, 6))

    def _metrics_away(self, seconds: float) -> None:
        world, self._pressing["metrics"] = self.world, self._pressing.get("metrics", 0) + 1
        world.metrics.away = world.summaries.away = True

        def back() -> None:
            self._pressing["metrics"] -= 1
            world.metrics.away = world.summaries.away = self._pressing["metrics"] > 0

        self.later(seconds, back)

    def helper_crashes(self) -> None:
        if learners := self.world.crew.learners():
            learner = self.chance.choice(learners)
            if self.world.crew.crash_helper(learner):
                self.strikes("helper crashes", learner.job, learner.name)

    def helper_cut_off(self) -> None:
        if learners := self.world.crew.learners():
            learner, off = self.chance.choice(learners), self.world.crew.cut_off
            self.strikes("helper cut off", learner.job, learner.name)
            off.add(learner)
            self.later(self.chance.uniform(1, 8), lambda: off.discard(learner))

    def away(self, port: str, seconds: float = 0.0) -> None:
        kind = {"cluster": "node agent away", "jobs": "job store away", "status": "etcd away"}[port]
        self.strikes(kind)
        away, self._pressing[port] = self.world.network.away, self._pressing.get(port, 0) + 1
        away.add(port)

        def back() -> None:
            self._pressing[port] -= 1
            if not self._pressing[port]:
                away.discard(port)
                if port == "status":
                    self.world.etcd.come_back()
                if port == "cluster":
                    self.world.machines.say("")

        self.later(seconds or self.chance.choice([0.5, 2, 5, 8]), back)

    def etcd_away(self) -> None:
        self.away("status")
        self.world.etcd.go_away()

    def etcd_wiped(self) -> None:
        self.strikes("etcd wiped")
        self.world.etcd.forget()

    def objects_away(self) -> None:
        self.strikes("object store away")
        crew, self._pressing["objects"] = self.world.crew, self._pressing.get("objects", 0) + 1
        crew.objects_away = True

        def back() -> None:
            self._pressing["objects"] -= 1
            crew.objects_away = self._pressing["objects"] > 0

        self.later(self.chance.uniform(1, 10), back)

    def hints(self, what: str) -> None:
        self.trace.note("hints are", what)
        setattr(self.world.post, what, True)
        self.later(self.chance.uniform(2, 12), lambda: setattr(self.world.post, what, False))

    def cut(self, port: str) -> None:
        name = self._one()
        if name is not None:
            self.strikes(f"cut from {port}", *name)
            self._cut_for(self.world.wire_of(name), port, self.chance.choice([0.5, 2, 5, 8]))

    def _cut_for(self, wire: Any, port: str, seconds: float) -> None:
        wire.cut.add(port)
        self.later(seconds, lambda: wire.cut.discard(port))

    def pause(self, service: str) -> None:
        """SIGSTOP. Mostly for longer than the lease."""
        name = self._one(service)
        if name is None or not self.world.wire_of(name).running.is_set():
            return
        wire, seconds = self.world.wire_of(name), self.chance.choice([1, 3.5, 4, 6, 9])
        self.strikes(f"{service} paused" + (" beyond its lease" if seconds > 3 else ""), name[1], seconds)
        wire.running.clear()

        def goes_on() -> None:
            self.trace.note("goes on", wire.name)
            wire.running.set()

        self.later(seconds, goes_on)

    def arm(self, kind: str) -> None:
        """It strikes whom it may, at the next call that writes there."""
        port, seconds = self.chance.choice(["jobs", "status", "cluster"]), self.chance.choice([0.5, 2, 5])
        for name in _PLACES:
            if name in self.world.alive and (port == "jobs" or name[0] == "guardian"):
                self.world.wire_of(name).armed[kind] = (port, seconds)

    def stale_reads(self) -> None:
        for name in _PLACES:
            if name in self.world.alive:
                wire = self.world.wire_of(name)
                wire.stale = self.chance.choice([1, 2, 5])
                self.later(self.chance.uniform(2, 8), partial(setattr, wire, "stale", 0))

    def slow_keep_alives(self) -> None:
        """Answers that are long on their way; then none."""
        name = self._one()
        if name is not None:
            wire = self.world.wire_of(name)
            self.strikes("slow keep-alives", *name)
            wire.slow_s = self.chance.uniform(0.3, 0.9)
            self.later(self.chance.uniform(2, 5), lambda: setattr(wire, "slow_s", 0.0))
            self.later(self.chance.uniform(1.5, 3), lambda: self._cut_for(wire, "status", 4))

    def lease_lost(self) -> None:
        """etcd ends it; its holder lives, and learns of it later."""
        name = self._one()
        lease = self.world.alive[name].membership.lease if name is not None else None
        if name is not None and lease is not None:
            self.strikes("lease lost, holder runs", *name)
            self._cut_for(self.world.wire_of(name), "status", 5)

    def clock_jumps(self) -> None:
        name = self._one()
        if name is not None:
            clock = self.world.clock_of(name)
            clock.wrong_ms = self.chance.choice([-3_600_000, -30_000, -2_000, 2_000, 30_000, 240_000])
            self.strikes("clock jumps", *name, clock.wrong_ms)
            self.later(self.chance.uniform(1, 10), lambda: setattr(clock, "wrong_ms", 0))

    def node_lost(self) -> None:
        node = self.chance.choice(NODES).name
        cut_off = self.chance.random() < 0.6
        self.strikes("node cut off" if cut_off else "node lost", node)
        self.world.machines.lose(node, cut_off=cut_off)
        self.later(self.chance.uniform(0.5, 8), lambda: self.world.machines.find(node))

    def learner_lost(self) -> None:
        learners = [one for one in self.world.crew.learners() if one.exit is None]
        if learners:
            learner = self.chance.choice(learners)
            self.strikes("learner lost", learner.job, learner.name)
            if self.chance.random() < 0.5 and learner.started is not None:
                self.world.checker.ends_by_itself(learner, None, lost=True)
                learner.end(None, lost=True)
            else:
                self.world.machines.vanish(learner)

    # --- peace -----------------------------------------------------------------------------

    async def settle(self) -> float:
        """The faults stop. Seconds until all was as it should be."""
        self.peace = True
        await asyncio.gather(*self._mends)
        while any(not mend.done() for mend in self._mends):
            await asyncio.gather(*self._mends)
        for wire in [self.world.api, *(self.world.wire_of(name) for name in self.world.alive)]:
            wire.armed.clear()
        for name in [("lcm", "one"), ("guardian", "one")]:
            await self._revive(name)
        self.trace.note("PEACE")
        began = self._loop.time()
        checker = self.world.checker
        await asyncio.wait_for(asyncio.gather(*self._requests), PEACE_S)
        while not checker.breaches and (
            busy := [job for job in self.jobs if not (await self.world.document(job)).at_rest]
        ):
            if self._loop.time() > began + PEACE_S:
                for job_id in busy:
                    checker.late(await self.world.document(job_id))
                break
            await asyncio.sleep(0.1)
        rested = self._loop.time()
        while not checker.breaches and (left := await self.world.left()):
            if self._loop.time() > rested + CLEAN_S:
                checker.left(left)
                break
            await asyncio.sleep(0.5)
        if not checker.breaches:
            for job_id in self.jobs:
                checker.ended(await self.world.document(job_id))
        return rested - began


def _fate(chance: random.Random) -> Fate:
    return Fate(
        download_s=chance.uniform(0, 1), run_s=chance.uniform(0.1, 3), code=chance.choice([0] * 7 + [1]),
        store_s=chance.choice([0.1, 0.1, 1]), on_term=chance.choice([-15, 0, None]),
        lost=chance.random() < 0.02,
        fails=("EnvironmentFailed", "no such package") if chance.random() < 0.02 else None,
    )  # fmt: skip
