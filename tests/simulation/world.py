"""The platform of one seed: real Dispatchers, Collectors and Guardian pools, each on a wire of its own.

It is the test bed's control plane (``tests.testbed.control_plane``) over stores and machines that a checker watches,
with a clock for each process: wall clocks may jump, boot time never does.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from services.core.domain.errors import Unavailable, WeftError
from services.core.domain.ids import RANDOM_BITS, make_id
from services.core.domain.job import Job, new_job, removed, set_desired
from services.core.domain.status import Desired
from services.core.ports.cluster import Node
from services.core.use_cases.jobs import update
from tests.simulation.checker import Checker, Declared
from tests.simulation.machines import Crew, Machines
from tests.simulation.metrics_service import MetricsService
from tests.simulation.stores import Etcd, Ledger
from tests.simulation.wire import Network, Wire
from tests.testbed.control_plane import EPOCH_MS, ControlPlane, Process, Summaries

NODES: Final = (
    Node(name="north", cpus=8, memory=64 * 10**9, gpus=4), Node(name="south", cpus=8, memory=64 * 10**9, gpus=2)
)  # fmt: skip
_RETRY_S: Final = 0.3
_COLLECT_S: Final = 3.0
"""Leftovers are looked for more often than in an installation: there must be many looks in a story."""


class WallClock:
    """One process's: the loop's time, and a wall clock that can be put wrong."""

    def __init__(self, network: Network) -> None:
        self._loop, self._chance = asyncio.get_running_loop(), network.chance
        self.wire: Wire | None = None
        self.wrong_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + round(self._loop.time() * 1000) + self.wrong_ms

    def boottime(self) -> float:
        return self._loop.time()

    def random_bits(self, count: int) -> int:
        return self._chance.getrandbits(count)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.wire is not None:
            await self.wire.go_on()


class Post:
    """Hints between all processes: lost, doubled, late, and out of order."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.lost = self.doubled = False
        self.hear: list[Any] = []
        self.sent = self.dropped = 0

    async def send(self, topic: str, job_id: str) -> None:
        if self.lost:
            self._network.struck["hint lost"] += 1
            return
        times = 2 if self.doubled else 1
        self._network.struck["hint doubled"] += self.doubled
        for _ in range(times):
            delay = self._network.chance.choice([0, 0.001, 0.05])
            asyncio.get_running_loop().call_later(delay, self._arrive, topic, job_id)

    def _arrive(self, topic: str, job_id: str) -> None:
        for hear in list(self.hear):
            hear(topic, job_id)

    async def close(self) -> None: ...


class World(ControlPlane):
    """Make it inside the loop; ``close`` it there."""

    def __init__(self, seed: int, home: Path) -> None:
        self._seed = seed
        super().__init__(home, NODES, lcm={"collect_s": _COLLECT_S})

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.network = Network(random.Random(f"network {self._seed}"))
        self.checker = Checker({node.name: (node.cpus, node.gpus) for node in NODES}, loop.time)
        self._true_clock = WallClock(self.network)
        self.ledger = Ledger(self.checker, lambda: self.network.actor)
        self.etcd = Etcd(self.checker, clock=loop.time)
        self.machines = Machines(
            NODES, self.checker, lambda: self.network.actor, now_ms=self._true_clock.now_ms
        )  # fmt: skip
        self.metrics: Any = MetricsService(self.etcd, self._wire)
        self.crew = Crew(self.machines, self.metrics, self.checker, self.network.chance)
        self.summaries = Summaries()
        self.post = Post(self.network)
        self.jobs, self.status, self.cluster = self.ledger, self.etcd, self.machines
        self.alive: dict[tuple[str, str], Process] = {}
        self._clocks: dict[tuple[str, str], WallClock] = {}
        self._born = 0
        self._processes = []
        self._orphans = []
        self.api = self._wire("api")

    def _wire(self, name: str) -> Wire:
        return Wire(name, self.network, self.ledger, self.etcd)

    # --- processes ----------------------------------------------------------------------

    async def launch(self, service: str, place: str) -> None:
        """``service``: guardian | lcm. One that follows a dead one of the same place is its restart."""
        self._born += 1
        clock = self._clocks.setdefault((service, place), WallClock(self.network))
        wire: Any = self._wire(f"{service}-{place}#{self._born}")
        clock.wire = wire
        # What the control plane gives to the process it is about to start.
        self.clock: Any = clock
        self.hints: Any = _Hints(self.post, wire)
        process = await (self.start_pool if service == "guardian" else self.start_lcm)(wire, place=place)
        self.post.hear.append(process.hear)
        self.checker.joined(wire.name, process.membership.id)
        self.alive[service, place] = process
        for task in process.tasks:
            task.add_done_callback(lambda task: self._fell(wire.name, task))

    def _fell(self, name: str, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.checker.fell(name, f"{error!r} ({Path(where.filename).name}:{where.lineno})")

    async def kill(self, process: Process) -> None:
        """kill -9. What it had in flight does not happen; its lease runs out by itself."""
        wire: Any = process.wire
        wire.dead.set()
        wire.running.set()
        self.alive = {name: one for name, one in self.alive.items() if one is not process}
        self.post.hear.remove(process.hear)
        self._processes.remove(process)
        stay = process.membership._task
        tasks = [*process.tasks, *([stay] if stay is not None else []), *(lease._renewal for lease in wire.leases)]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def close(self) -> None:
        for process in list(self._processes):
            await self.kill(process)
        for late in self.network.late:
            late.cancel()
        await self.metrics.close()
        await self.crew.close()

    def wire_of(self, name: tuple[str, str]) -> Wire:
        return cast("Wire", self.alive[name].wire)

    def clock_of(self, name: tuple[str, str]) -> WallClock:
        return self._clocks[name]

    # --- what users do, by an api that can die and be cut off ------------------------------

    async def submit_job(self, spec: Mapping[str, Any], declared: Declared) -> str:
        """The id of a job that was acknowledged. Asked again, with the same key, until it is."""
        jobs, now = self.api.wrap(self.ledger, "jobs"), self._true_clock.now_ms()
        job_id = make_id("j", now_ms=now, random_bits=self.network.chance.getrandbits(RANDOM_BITS))
        self.checker.declare(job_id, declared)
        job = new_job(
            job_id=job_id, tenant="acme", user="ada", spec=spec, code_digest="", idem=f"acme/ada/{job_id}",
            idem_digest="", trace="", now=now,
        )  # fmt: skip
        while (known := await self._asked(jobs.by_idem(job.idem))) is None:
            await self._asked(jobs.insert(job))
        await self.post.send("submitted", known.id)
        return job_id

    async def _asked(self, request: Any) -> Job | None:
        try:
            answer: Job | None = await request
        except Unavailable:
            await asyncio.sleep(_RETRY_S)
            return None
        return answer

    async def wish_for(self, job_id: str, wish: Desired) -> bool:
        """Whether it was taken: some wishes cannot be had any more."""
        jobs, now = self.api.wrap(self.ledger, "jobs"), self._true_clock.now_ms()
        while True:
            try:
                await update(jobs, job_id, None, lambda one: set_desired(one, wish, actor="user:ada", now=now))
            except Unavailable:
                await asyncio.sleep(_RETRY_S)
            except WeftError:
                return False
            else:
                await self.post.send("desired", job_id)
                return True

    async def delete(self, job_id: str) -> bool:
        jobs, now = self.api.wrap(self.ledger, "jobs"), self._true_clock.now_ms()
        with suppress(WeftError):
            await update(jobs, job_id, None, lambda one: removed(one, now=now))
            return True
        return False

    # --- what there is ----------------------------------------------------------------------

    async def document(self, job_id: str) -> Job:
        job = await self.ledger.get(job_id)
        assert job is not None
        return job

    async def left(self) -> list[str]:
        keys = [key for key in self.etcd._entries if key.startswith("/jobs/")]
        there = [
            f"{one.job}/{one.attempt}/{one.name}"
            for job in self.machines.present()
            for one in self.machines.learners(job)
        ]
        return keys + there


class _Hints:
    """Of one process: they go by its wire, and are lost where that is cut."""

    def __init__(self, post: Post, wire: Wire) -> None:
        self._post, self._wire = post, wire
        self.sent = self.dropped = 0
        self.hear: list[Any] = []
        """Where the control plane notes who hears: the post does that here."""

    async def send(self, topic: str, job_id: str) -> None:
        await self._wire.go_on()
        if self._wire.reaches("hints"):
            await self._post.send(topic, job_id)

    async def close(self) -> None: ...
