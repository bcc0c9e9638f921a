"""The control plane in one event loop and in virtual time: real Dispatchers and Guardian pools over ports in memory.

Each service is a *process* of its own: it calls its ports through a ``Tripwire``, has a lease of its own, and can be
killed between any two calls. Stores, cluster and helpers are shared and outlive the processes, as on a machine.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from services.core.domain.errors import Unavailable
from services.core.domain.job import Job
from services.core.domain.job import set_desired as with_desired
from services.core.domain.sizes import SIZES
from services.core.domain.status import Desired, Status
from services.core.ports.cluster import Node
from services.core.ports.guardian_launcher import GuardianLauncher
from services.core.ports.status_store import Lease
from services.core.runtime.membership import Membership
from services.core.runtime.quarantine import Quarantine
from services.core.use_cases.jobs import history, update
from services.guardian.instrumentation import Instrumentation as GuardianInstrumentation
from services.guardian.pool import Pool
from services.guardian.ports import GuardianPorts
from services.guardian.settings import GuardianSettings
from services.lcm.background import BackgroundTasks
from services.lcm.collector import Collector
from services.lcm.dispatcher import Dispatcher
from services.lcm.guardian_jobs import GuardianJobs
from services.lcm.instrumentation import Instrumentation as LcmInstrumentation
from services.lcm.settings import LcmSettings
from services.lcm.wiring import LcmPorts
from tests.documents import a_job
from tests.testbed.helpers_in_memory import Helpers, Metrics
from tests.testbed.identities import SIGNER
from tests.testbed.memory.cluster import MemoryCluster, MemoryLearner
from tests.testbed.memory.jobs import MemoryJobStore
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.testbed.tripwire import Tripwire

EPOCH_MS = 1_700_000_000_000
_POLL_S = 0.05
WHOLE_LIFE = ["QUEUED", "PENDING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED"]


class VirtualClock:
    """Shows the time of the event loop, which advances while a test waits."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._bits = itertools.count(1)

    def now_ms(self) -> int:
        return EPOCH_MS + round(self._loop.time() * 1000)

    def boottime(self) -> float:
        return self._loop.time()

    def random_bits(self, count: int) -> int:
        return next(self._bits) & ((1 << count) - 1)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Summaries:
    """Answers as the metrics service at the end of a job."""

    def __init__(self) -> None:
        self.away = False
        self.delay_s = 0.0
        self.broken: set[str] = set()
        """Jobs whose summary raises an error that no port may raise."""

    async def summary(self, job_id: str) -> Mapping[str, Any]:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if job_id in self.broken:
            raise ValueError("a bug")
        if self.away:
            raise Unavailable("metrics does not answer")
        return {"lines": 1, "points": 0, "latest": {}}


class Direct:
    """Hints that arrive at once, or never (``lost``)."""

    def __init__(self) -> None:
        self.lost = False
        self.sent = 0
        self.dropped = 0
        self.receivers: list[Callable[[str, str], None]] = []

    async def send(self, topic: str, job_id: str) -> None:
        self.dropped += self.lost
        self.sent += not self.lost
        for receive in [] if self.lost else self.receivers:
            receive(topic, job_id)

    async def close(self) -> None: ...


@dataclass
class Process:
    """A running service."""

    wire: Tripwire
    membership: Membership
    stopping: asyncio.Event
    tasks: list[asyncio.Task[Any]]
    on_hint: Callable[[str, str], None]
    service: Any
    """The Pool or the Dispatcher."""


@dataclass
class ControlPlane:
    """Create it, and ``close`` it, inside the event loop."""

    home: Path
    nodes: Sequence[Node] = (Node(name="local", cpus=16, memory=64 * 10**9, gpus=4),)
    guardian: dict[str, Any] = field(default_factory=dict)
    """Settings of the guardian service."""
    lcm: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.clock = VirtualClock()
        self.jobs = MemoryJobStore()
        self.status = MemoryStatusStore(clock=loop.time)
        self.cluster = MemoryCluster(self.nodes, now_ms=self.clock.now_ms)
        self.cluster.on_start = self._check_start
        self.metrics = Metrics(self.status)
        self.helpers = Helpers(self.cluster, self.metrics, self.clock.now_ms)
        self.summaries = Summaries()
        self.hints = Direct()
        self.faults: list[str] = []
        """Violations that were seen; ``close`` asserts that there are none."""
        self.starts: list[tuple[str, int, str]] = []
        """(job, attempt, learner) of each process that was started, in order."""
        self._processes: list[Process] = []
        self._orphans: list[Lease] = []
        """Leases of killed processes."""

    # --- processes -----------------------------------------------------------------

    async def start_pool(self, wire: Tripwire | None = None, *, place: str = "one", **settings: Any) -> Process:
        """Starts a guardian service. A second one of the same ``place`` is the restarted first one."""
        wire, chosen = wire or Tripwire(), GuardianSettings(home=self.home / place, **{**self.guardian, **settings})
        ports = GuardianPorts(
            jobs=wire.wrap(self.jobs, "jobs"),
            status=wire.wrap(self.status, "status"),
            cluster=wire.wrap(self.cluster, "cluster"),
            hints=wire.wrap(self.hints, "hints"),
            clock=self.clock,
            summaries=wire.wrap(self.summaries, "summaries"),
            mint=SIGNER.mint,
            sizes=SIZES,
        )
        membership = Membership("guardian", ports.status, self.clock, chosen)
        quarantine = Quarantine(self.clock.now_ms, CollectorRegistry())
        pool = Pool(ports, chosen, membership, GuardianInstrumentation(CollectorRegistry()), quarantine)

        def on_hint(topic: str, job_id: str) -> None:
            if topic in {"admitted", "desired"}:
                pool.nudge(job_id)

        return await self._start(wire, membership, [pool.run], on_hint, pool)

    async def start_lcm(
        self,
        wire: Tripwire | None = None,
        *,
        place: str = "one",
        launcher: GuardianLauncher | None = None,
        **settings: Any,
    ) -> Process:
        """``launcher``: starts a Guardian for each job; None: start a pool."""
        wire, chosen = wire or Tripwire(), LcmSettings(home=self.home / place, **{**self.lcm, **settings})
        ports = LcmPorts(
            jobs=wire.wrap(self.jobs, "jobs"),
            status=wire.wrap(self.status, "status"),
            cluster=wire.wrap(self.cluster, "cluster"),
            hints=wire.wrap(self.hints, "hints"),
            clock=self.clock,
        )
        membership = Membership("lcm", ports.status, self.clock, chosen)
        instrumentation, quarantine = (
            LcmInstrumentation(CollectorRegistry()),
            Quarantine(self.clock.now_ms, CollectorRegistry()),
        )
        dispatcher = Dispatcher(
            ports.jobs,
            ports.status,
            ports.cluster,
            ports.hints,
            self.clock,
            chosen,
            membership,
            instrumentation,
            quarantine,
        )
        collector = Collector(ports.jobs, ports.status, ports.cluster, instrumentation)
        background = BackgroundTasks(ports, chosen, dispatcher, collector)

        def on_hint(topic: str, _: str) -> None:
            if topic in {"submitted", "released"}:
                dispatcher.wake()

        wrapped = wire.wrap(launcher, "launcher") if launcher is not None else None
        guardians = GuardianJobs(ports.jobs, wrapped, instrumentation) if wrapped is not None else None
        work = [dispatcher.run, *(_until_stopping(loop) for loop in background.loops(guardians))]
        return await self._start(wire, membership, work, on_hint, dispatcher)

    async def _start(
        self,
        wire: Tripwire,
        membership: Membership,
        work: list[Any],
        on_hint: Callable[[str, str], None],
        service: Any,
    ) -> Process:
        stopping = asyncio.Event()

        async def live() -> None:
            await membership.start()
            await asyncio.gather(*(run(stopping) for run in work))

        process = Process(wire, membership, stopping, [asyncio.create_task(live())], on_hint, service)
        self.hints.receivers.append(on_hint)
        self._processes.append(process)
        return process

    async def kill(self, process: Process) -> None:
        """kill -9: no further call of it takes effect, and its lease is not revoked but expires."""
        process.wire.dead.set()
        self.hints.receivers.remove(process.on_hint)
        self._processes.remove(process)
        stay = process.membership._task
        for task in [*process.tasks, *([stay] if stay is not None else [])]:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if process.membership.lease is not None:
            self._orphans.append(process.membership.lease)
        self._pause_orphans()

    def pause(self, process: Process) -> None:
        """SIGSTOP: it stands still and its lease expires. ``wire.resume()`` continues it where it was."""
        process.wire.moving.clear()
        if process.membership.lease is not None:
            self.status.pause(process.membership.lease.id)

    def etcd_comes_back(self) -> None:
        """After ``status.go_away``: live processes keep their leases alive again, killed ones do not."""
        self.status.come_back()
        self._pause_orphans()

    def _pause_orphans(self) -> None:
        """Lets the leases of killed processes expire."""
        self._orphans = [lease for lease in self._orphans if lease.alive]
        for lease in self._orphans:
            self.status.pause(lease.id)

    async def stop(self, process: Process) -> None:
        """SIGTERM."""
        process.stopping.set()
        for task in process.tasks:
            await task
        self.hints.receivers.remove(process.on_hint)
        self._processes.remove(process)
        await process.membership.leave()

    async def close(self) -> None:
        for process in list(self._processes):
            await self.kill(process)
        await self.helpers.close()
        assert self.faults == []

    # --- what users do ---------------------------------------------------------------

    async def submit(self, **spec: Any) -> str:
        """The id of a new job, QUEUED."""
        text = {"name": "digits", "command": "python train.py", **spec}
        job = await self.jobs.insert(a_job(at=self.clock.now_ms(), spec=text))
        await self.hints.send("submitted", job.id)
        return job.id

    async def set_desired(self, job_id: str, desired: Desired, *, by: str = "ada") -> Job:
        """The job after a user's halt, resume or kill."""
        now, actor = self.clock.now_ms(), f"user:{by}"
        job = await update(self.jobs, job_id, None, lambda job: with_desired(job, desired, actor=actor, now=now))
        await self.hints.send("desired", job_id)
        return job

    # --- what there is ---------------------------------------------------------------

    async def job(self, job_id: str) -> Job:
        job = await self.jobs.get(job_id)
        assert job is not None
        return job

    async def path(self, job_id: str) -> list[str]:
        """The statuses of its history, which has no gap and no double."""
        events = await history(self.jobs, await self.job(job_id))
        assert [event.seq for event in events] == list(range(1, len(events) + 1)), "the history has a gap or a double"
        return [event.to.value for event in events]

    async def until(self, condition: Callable[[Job], bool], job_id: str, *, within_s: float = 60) -> Job:
        """The job, once the condition holds. AssertionError if it does not within so much virtual time."""
        deadline = self.clock.boottime() + within_s
        while not condition(job := await self.job(job_id)):
            assert self.clock.boottime() < deadline, f"not within {within_s} s: {job}"
            await asyncio.sleep(_POLL_S)
        return job

    async def reached(self, job_id: str, status: Status, *, within_s: float = 60) -> Job:
        return await self.until(lambda job: job.status is status, job_id, within_s=within_s)

    async def running(self, job_id: str, *, within_s: float = 60) -> Job:
        """The job, once every process of its newest attempt runs according to the cluster."""

        def all_run(_: Job) -> bool:
            learners = self.cluster.learners(job_id)
            return bool(learners) and all(learner.state == "running" for learner in learners)

        return await self.until(all_run, job_id, within_s=within_s)

    async def rested(self, job_id: str, *, within_s: float = 60) -> Job:
        """The job, once it has ended and is released."""
        return await self.until(lambda job: job.at_rest, job_id, within_s=within_s)

    async def leftovers(self) -> list[str]:
        """Keys in the status store and learners on the cluster; none once all jobs are released."""
        keys = [entry.key for entry in await self.status.list("/jobs/")]
        return [
            *keys,
            *(
                f"{learner.job}/{learner.attempt}/{learner.name}"
                for job in await self.cluster.jobs()
                for learner in self.cluster.learners(job)
            ),
        ]

    def _check_start(self, learner: MemoryLearner) -> None:
        """Records a violation if a process is started twice or beside another attempt, or its node is overcommitted."""
        self.starts.append((learner.job, learner.attempt, learner.name))
        if learner.runs > 1:
            self.faults.append(f"{learner.job}/{learner.attempt}/{learner.name} was started twice")
        for other in self.cluster.learners(learner.job):
            if other.attempt != learner.attempt and other.state == "running":
                self.faults.append(f"attempt {other.attempt} of {other.job} still ran when {learner.attempt} started")
        everywhere = [other for job in self.cluster.present() for other in self.cluster.learners(job)]
        running = [other for other in everywhere if other.state == "running"]
        for node in self.nodes:
            plans = [other.plan for other in running if other.plan.node == node.name]
            if sum(plan.cpus for plan in plans) > node.cpus or sum(plan.gpus for plan in plans) > node.gpus:
                self.faults.append(f"{node.name} is overcommitted: {[other.name for other in running]}")


def _until_stopping(loop: Callable[[], Any]) -> Callable[[asyncio.Event], Any]:
    """``loop`` as a coroutine function that cancels it when its argument is set."""

    async def run(stopping: asyncio.Event) -> None:
        task = asyncio.create_task(loop())
        try:
            await stopping.wait()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    return run
