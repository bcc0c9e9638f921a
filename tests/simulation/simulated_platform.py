"""The simulated platform of one seed: real Dispatchers, Collectors and Guardian pools over simulated stores.

It is the test bed's control plane (``tests.testbed.control_plane``) with stores and a cluster that report to the
checker, and with a connection and a clock for each process. Wall clocks can jump; boot-time clocks cannot.
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
from tests.simulation.metrics_service import MetricsService
from tests.simulation.network import Connection, Network
from tests.simulation.simulated_cluster import LearnerSimulator, SimulatedCluster
from tests.simulation.stores import CheckedJobStore, SimulatedEtcd
from tests.testbed.control_plane import EPOCH_MS, ControlPlane, Process, Summaries

NODES: Final = (
    Node(name="north", cpus=8, memory=64 * 10**9, gpus=4),
    Node(name="south", cpus=8, memory=64 * 10**9, gpus=2),
)
_RETRY_S: Final = 0.3
_COLLECT_S: Final = 3.0
"""The collector runs more often than in an installation, so that it runs many times per seed."""


class ProcessClock:
    """The clocks of one process: the event loop's time, and a wall clock that can be set wrong."""

    def __init__(self, network: Network) -> None:
        self._loop, self._chance = asyncio.get_running_loop(), network.chance
        self.connection: Connection | None = None
        self.wrong_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + round(self._loop.time() * 1000) + self.wrong_ms

    def boottime(self) -> float:
        return self._loop.time()

    def random_bits(self, count: int) -> int:
        return self._chance.getrandbits(count)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.connection is not None:
            await self.connection.wait_until_running()


class HintBus:
    """Delivers hints to all processes: late, out of order, and, where set, lost or doubled."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.lost = self.doubled = False
        self.receivers: list[Any] = []
        self.sent = self.dropped = 0

    async def send(self, topic: str, job_id: str) -> None:
        if self.lost:
            self._network.fault_counts["hint lost"] += 1
            return
        times = 2 if self.doubled else 1
        self._network.fault_counts["hint doubled"] += self.doubled
        for _ in range(times):
            delay = self._network.chance.choice([0, 0.001, 0.05])
            asyncio.get_running_loop().call_later(delay, self._arrive, topic, job_id)

    def _arrive(self, topic: str, job_id: str) -> None:
        for receive in list(self.receivers):
            receive(topic, job_id)

    async def close(self) -> None: ...


class SimulatedPlatform(ControlPlane):
    """Create and ``close`` it in the event loop of the seed."""

    def __init__(self, seed: int, home: Path) -> None:
        self._seed = seed
        super().__init__(home, NODES, lcm={"collect_s": _COLLECT_S})

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.network = Network(random.Random(f"network {self._seed}"))
        self.checker: Any = self.new_checker()
        self._true_clock = ProcessClock(self.network)
        self.job_store = CheckedJobStore(self.checker, lambda: self.network.actor)
        self.etcd = SimulatedEtcd(self.checker, clock=loop.time)
        self.simulated_cluster: Any = self.new_cluster(self._true_clock)
        self.metrics: Any = MetricsService(self.etcd, self._connection)
        self.simulator = LearnerSimulator(self.simulated_cluster, self.metrics, self.checker, self.network.chance)
        self.summaries = Summaries()
        self.hint_bus = HintBus(self.network)
        self.jobs, self.status = self.job_store, self.etcd
        self.alive: dict[tuple[str, str], Process] = {}
        self._clocks: dict[tuple[str, str], ProcessClock] = {}
        self._starts = 0
        self._processes = []
        self._orphans = []
        self.api = self._connection("api")

    def new_checker(self) -> Checker:
        nodes = {node.name: (node.cpus, node.gpus) for node in NODES}
        return Checker(nodes, asyncio.get_running_loop().time)

    def new_cluster(self, clock: ProcessClock) -> Any:
        """What is behind the Cluster port: ``simulated_cluster``."""
        return SimulatedCluster(NODES, self.checker, lambda: self.network.actor, now_ms=clock.now_ms)

    def cluster_of(self, connection: Connection, clock: ProcessClock) -> Any:
        """The Cluster port of a process: one object serves all."""
        return self.simulated_cluster

    def _connection(self, name: str) -> Connection:
        return Connection(name, self.network, self.job_store, self.etcd)

    # --- processes ----------------------------------------------------------------------

    async def launch(self, service: str, place: str) -> None:
        """Starts a process of ``service`` (guardian | lcm); a second one of a ``place`` is a restart of the first."""
        self._starts += 1
        clock = self._clocks.setdefault((service, place), ProcessClock(self.network))
        connection: Any = self._connection(f"{service}-{place}#{self._starts}")
        clock.connection = connection
        # The control plane gives these to the process that it starts.
        self.clock: Any = clock
        self.cluster: Any = self.cluster_of(connection, clock)
        self.hints: Any = _ProcessHints(self.hint_bus, connection)
        process = await (self.start_pool if service == "guardian" else self.start_lcm)(connection, place=place)
        self.hint_bus.receivers.append(process.on_hint)
        self.checker.joined(connection.name, process.membership.id)
        self.alive[service, place] = process
        for task in process.tasks:
            task.add_done_callback(lambda task: self._check_task(connection.name, task))

    def _check_task(self, name: str, task: asyncio.Task[Any]) -> None:
        """Reports an exception that ended a service."""
        if not task.cancelled() and (error := task.exception()) is not None:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            self.checker.process_failed(name, f"{error!r} ({Path(frame.filename).name}:{frame.lineno})")

    async def kill(self, process: Process) -> None:
        """Kills a process as SIGKILL does. Its calls in flight have no effect; its lease runs out."""
        connection: Any = process.wire
        connection.dead.set()
        connection.running.set()
        self.alive = {name: other for name, other in self.alive.items() if other is not process}
        self.hint_bus.receivers.remove(process.on_hint)
        self._processes.remove(process)
        joining = process.membership._task
        keepers = [lease._renewal for lease in connection.leases]
        tasks = [*process.tasks, *([joining] if joining is not None else []), *keepers]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def close(self) -> None:
        for process in list(self._processes):
            await self.kill(process)
        for effect in self.network.late:
            effect.cancel()
        await self.metrics.close()
        await self.simulator.close()

    def hurry(self) -> None:
        """From now on the work of learners takes little of the time in which the platform has to bring jobs to rest."""

    def connection_of(self, name: tuple[str, str]) -> Connection:
        return cast("Connection", self.alive[name].wire)

    def clock_of(self, name: tuple[str, str]) -> ProcessClock:
        return self._clocks[name]

    # --- requests of users, through an api that can crash and be cut off --------------------

    async def submit_job(self, spec: Mapping[str, Any], declared: Declared) -> str:
        """Submits a job, repeatedly under the same key until it is acknowledged. Returns its id."""
        jobs, now = self.api.wrap(self.job_store, "jobs"), self._true_clock.now_ms()
        job_id = make_id("j", now_ms=now, random_bits=self.network.chance.getrandbits(RANDOM_BITS))
        self.checker.declare(job_id, declared)
        job = new_job(
            job_id=job_id,
            tenant="acme",
            user="ada",
            spec=spec,
            code_digest="",
            idem=f"acme/ada/{job_id}",
            idem_digest="",
            trace="",
            now=now,
        )
        while (known := await self._try(jobs.by_idem(job.idem))) is None:
            await self._try(jobs.insert(job))
        await self.hint_bus.send("submitted", known.id)
        return job_id

    async def _try(self, request: Any) -> Job | None:
        """Returns the answer; None after a pause where the store is away."""
        try:
            answer: Job | None = await request
        except Unavailable:
            await asyncio.sleep(_RETRY_S)
            return None
        return answer

    async def request_desired(self, job_id: str, desired: Desired) -> bool:
        """Sets what the owner wants. Returns False where the job refuses it."""
        jobs, now = self.api.wrap(self.job_store, "jobs"), self._true_clock.now_ms()
        while True:
            try:
                await update(jobs, job_id, None, lambda job: set_desired(job, desired, actor="user:ada", now=now))
            except Unavailable:
                await asyncio.sleep(_RETRY_S)
            except WeftError:
                return False
            else:
                await self.hint_bus.send("desired", job_id)
                return True

    async def delete(self, job_id: str) -> bool:
        """Deletes a job. Returns False where it is not at rest or the store is away."""
        jobs, now = self.api.wrap(self.job_store, "jobs"), self._true_clock.now_ms()
        with suppress(WeftError):
            await update(jobs, job_id, None, lambda job: removed(job, actor="user:ada", now=now))
            return True
        return False

    # --- state ------------------------------------------------------------------------------

    async def document(self, job_id: str) -> Job:
        job = await self.job_store.get(job_id)
        assert job is not None
        return job

    async def leftovers(self) -> list[str]:
        """Returns the keys and learners of jobs that exist."""
        learners = [
            f"{learner.job}/{learner.attempt}/{learner.name}"
            for job in self.simulated_cluster.present()
            for learner in self.simulated_cluster.learners(job)
        ]
        return self.keys() + learners

    def keys(self) -> list[str]:
        """Returns the keys of jobs in etcd."""
        return [key for key in self.etcd._entries if key.startswith("/jobs/")]


class _ProcessHints:
    """The hints of one process. They are lost where its connection is cut."""

    def __init__(self, hint_bus: HintBus, connection: Connection) -> None:
        self._hint_bus, self._connection = hint_bus, connection
        self.sent = self.dropped = 0
        self.receivers: list[Any] = []
        """The control plane registers receivers here; they are not used: the bus has its own."""

    async def send(self, topic: str, job_id: str) -> None:
        await self._connection.wait_until_running()
        if self._connection.can_reach("hints"):
            await self._hint_bus.send(topic, job_id)

    async def close(self) -> None: ...
