"""The dispatcher: one process at a time admits waiting gangs that fit as a whole.

The leader's key in etcd is only a hint; the term in the ``dispatcher`` document is the fence. A new leader raises the
term by compare-and-set before it reads which jobs hold hardware. Each admission carries the term, and a Guardian waits
while the term of its admission is not the current one. So two dispatchers that both believe they lead cannot both get a
job provisioned: the leader stamps an admission of an older term with its own if it fits beside all others, and else
withdraws it by a verdict.

Free = capacity - unreleased admissions - what unreadable jobs hold. The job's status does not matter: a job that has
ended and is not released still holds hardware.

The same code answers whether a gang would fit (``snapshot``), on processes that do not lead, too: no other service
computes placement (docs/adr/0012-placement-has-one-owner.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from services.core.domain.errors import InvalidSpec, StaleFence, Unavailable, WeftError
from services.core.domain.job import Job, Verdict, admitted, moved
from services.core.domain.sizes import SIZES, Size
from services.core.domain.spec import JobSpec, parse_spec
from services.core.domain.status import PendingReason, Status
from services.core.domain.status_keys import LEADER, WOKEN
from services.core.domain.units import format_duration
from services.core.ports.clock import Clock
from services.core.ports.cluster import Cluster, Node
from services.core.ports.hints import Hints
from services.core.ports.job_store import DispatcherDoc, JobQuery, JobStore, Unreadable
from services.core.ports.status_store import Lease, StatusStore
from services.core.runtime.edges import log_unexpected
from services.core.runtime.free_space import FreeSpace
from services.core.runtime.membership import Membership, members
from services.core.runtime.quarantine import JOB, Quarantine
from services.core.runtime.timers import aligned_pause
from services.core.use_cases.jobs import all_jobs, update
from services.lcm.instrumentation import Instrumentation
from services.lcm.queue import WaitingQueue
from services.lcm.scheduling.held import HeldWalk, Hold
from services.lcm.scheduling.placement import (
    NOTHING,
    Free,
    Gang,
    Piece,
    Placed,
    all_free,
    fits_as_placed,
    gang_of,
    pieces,
    subtract,
)
from services.lcm.scheduling.policies import find_policy
from services.lcm.scheduling.policy import Decision, QueueWalk, Waiter
from services.lcm.scheduling.snapshot import Fit, Snapshot
from services.lcm.settings import LcmSettings
from services.lcm.unreadable import UnreadableJobs

_FRESH_SWEEPS: Final = 2
"""A snapshot older than so many sweeps is made anew: this process does not lead, or its rounds fail."""
_SPEC_ADVICE: Final = "`weft kill` it, and submit it anew"
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Held:
    """The cluster's nodes, and the jobs that hold hardware on them."""

    nodes: Sequence[Node]
    capacity: Sequence[Free]
    jobs: Sequence[Job]
    """All readable documents that hold hardware."""
    placed: Mapping[str, Placed]
    """By job id: those whose spec can be read."""
    unreadable: Mapping[str, Sequence[Piece]]
    """By job id: what all other jobs hold."""
    hold: Hold | None
    """Why nothing may be admitted, for people; empty: nothing holds admission up."""

    def by_id(self) -> dict[str, Job]:
        """The jobs by id."""
        return {job.id: job for job in self.jobs}

    def free(self) -> list[Free]:
        """What no job holds."""
        readable = [piece for placed in self.placed.values() for piece in pieces(*placed)]
        return subtract(self.beside_unreadable(), readable)

    def beside_unreadable(self) -> list[Free]:
        """What unreadable jobs leave of the capacity."""
        return subtract(self.capacity, (piece for held in self.unreadable.values() for piece in held))


@dataclass
class Dispatcher:
    """Call ``run()`` once; call ``wake()`` whenever something may have changed."""

    jobs: JobStore
    status: StatusStore
    cluster: Cluster
    hints: Hints
    clock: Clock
    settings: LcmSettings
    membership: Membership
    instrumentation: Instrumentation
    quarantine: Quarantine
    sizes: Mapping[str, Size] = field(default_factory=lambda: dict(SIZES))
    overhead: Size = NOTHING
    """What each learner takes of its node besides its own size."""
    free_space: FreeSpace | None = None
    """Of the platform's own stores; None: not watched."""
    stopping: Callable[[], bool] | None = None
    """Whether `weft down` halts the jobs now: then none is admitted. It may read a file. None: never."""
    waiting: Mapping[str, Decision] = field(default_factory=dict)
    """The last round's decisions for the jobs that wait, by id, in order. Empty while this process does not lead."""
    term: int = 0
    """The term of this dispatcher while it leads; else 0."""
    _gangs: dict[str, tuple[int, Gang | None]] = field(default_factory=dict)
    """By id of each job that waits or holds hardware: (fingerprint of its spec, its gang or None)."""
    _shared_gangs: dict[Gang, Gang] = field(default_factory=dict)
    """One object for all equal gangs."""
    _not_ready: dict[str, str] = field(default_factory=dict)
    """Tenant -> why the cluster cannot be made ready for it. Those that were tried longest ago come first."""
    _is_held: bool = False
    _snapshot: Snapshot | None = None
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a round and during a snapshot outside a round: both update the queue, gangs and unreadable jobs."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._policy = find_policy(self.settings.policy)  # a wrong name ends the service at its start, with the names
        self._least = Size(0, self.settings.learner_min_cpus, self.settings.learner_min_memory)
        self.unreadable = UnreadableJobs(
            self.jobs, self.cluster, self.quarantine, self.sizes, self._least, overhead=self.overhead
        )
        self._queue = WaitingQueue(self.jobs, self.unreadable, self._gang)

    def wake(self) -> None:
        """Starts the next round now: something may have changed."""
        self._wake.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Leads whenever it can, until ``stopping`` is set."""
        while not stopping.is_set():
            woken = self._wake.is_set()
            self._wake.clear()
            lease = self.membership.lease
            if lease is not None and lease.alive:
                try:
                    with log_unexpected("dispatcher.failed", expected=WeftError):
                        if await self._try_to_lead(lease):
                            await self._lead(lease, stopping)
                        elif woken:
                            await self.status.put(WOKEN, self.membership.id)
                except WeftError as error:
                    log.warning("dispatcher.interrupted", why=str(error))
                finally:
                    self._set_term(0)
                    self.waiting = {}
            await self._pause(stopping)

    async def watch_wakes(self) -> None:
        """Wakes this process, while it leads, by the hints that other life-cycle managers got. Runs until cancelled."""
        async with aclosing(self.status.watch(WOKEN)) as changes:
            async for _ in changes:
                if self.term:
                    self.wake()

    # --- leading -------------------------------------------------------------------

    async def _try_to_lead(self, lease: Lease) -> bool:
        """Becomes the leader unless another process is. Returns whether it leads."""
        own_value = f'"{self.membership.id}"'
        entry = await self.status.get(LEADER)
        if entry is not None and entry.value != own_value and await self._is_alive(entry.value):
            return False
        # Our own key may hang on a lease that we have lost since: it is written anew, on the current lease.
        revision = entry.mod_revision if entry is not None else 0
        if await self.status.put_if(LEADER, own_value, mod_revision=revision, lease=lease) is None:
            return False
        prior = await self.jobs.dispatcher()
        raised = await self.jobs.replace_dispatcher(
            prior, DispatcherDoc(term=prior.term + 1, holder=self.membership.id, rev=prior.rev)
        )
        self._set_term(raised.term)
        log.info("dispatcher.elected", term=self.term)
        return True

    async def _is_alive(self, value: str) -> bool:
        """True if the leader's key names a live LCM process. A key that no lease removes must not block the lead."""
        return value.strip('"') in await members(self.status, self.membership.service)

    async def _lead(self, lease: Lease, stopping: asyncio.Event) -> None:
        while not stopping.is_set() and lease.alive:
            self._wake.clear()
            try:  # after an error, other than StaleFence, this process goes on leading
                with (
                    log_unexpected("dispatcher.round_failed", expected=WeftError),
                    self.instrumentation.round_s.time(),
                ):
                    await self.round()
            except StaleFence:
                raise
            except WeftError as error:  # a store or the cluster is away
                log.warning("dispatcher.round_interrupted", why=str(error))
            await self._pause(stopping)

    async def _pause(self, stopping: asyncio.Event) -> None:
        """Returns after ``wake()``, when ``stopping`` is set, or after ``sweep_s``."""
        waits = [asyncio.ensure_future(self._wake.wait()), asyncio.ensure_future(stopping.wait())]
        pause_s = aligned_pause(self.settings.sweep_s)
        await asyncio.wait(waits, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def _set_term(self, term: int) -> None:
        self.term = term
        self.instrumentation.term.set(term)

    # --- one round -----------------------------------------------------------------

    async def round(self) -> int:
        """Reads everything once and admits what fits. Returns the number of admissions.

        Raises StaleFence if another dispatcher leads.
        """
        async with self._reading:
            return await self._round()

    async def _round(self) -> int:
        time_s = self.clock.boottime()
        held = await self._read_held()
        free = await self._judge_admissions(held)
        page = await self._queue.refresh(held.by_id())
        await self._prepare_again()
        walk, decisions = await self._walk_queue(free, held)
        self._record_hold(held.hold)
        self.waiting = _without_placement(decisions)
        self.instrumentation.waiting(decision.job.gang for decision in self.waiting.values())
        self.instrumentation.holding.set(len(held.jobs))
        admissions: dict[str, Placed] = {}
        for decision in decisions:
            gang, placement = decision.job.gang, decision.placement
            if gang is not None and placement is not None and await self._admit(decision, placement):
                self.instrumentation.admitted(gang)
                admissions[decision.job.id] = gang, placement
        placed = {**held.placed, **admissions}
        self._snapshot = Snapshot(held.nodes, placed, held.unreadable, walk, time_s, self.waiting)
        # Jobs beyond the walk may have waited too long, too: each is on the page of some round.
        for waiter in {waiter.id: waiter for waiter in [*(decision.job for decision in decisions), *page]}.values():
            await self._fail_if_expired(waiter)
        self._forget_others({*held.by_id(), *self._queue.ids})
        return len(admissions)

    async def _read_held(self) -> _Held:
        nodes = await self.cluster.capacity()
        left_out: list[Unreadable] = []
        query = JobQuery(holding=True, deleted=True)
        jobs = [job async for job in all_jobs(self.jobs, query, left_out=left_out)]
        gangs = {job.id: (gang, job.attempt.placement) if (gang := self._gang(job)) else None for job in jobs}
        unreadable = await self.unreadable.held(gangs, left_out)
        placed = {job_id: placed for job_id, placed in gangs.items() if placed is not None}
        return _Held(nodes, all_free(nodes), jobs, placed, unreadable, await self._hold(nodes))

    async def _judge_admissions(self, held: _Held) -> Sequence[Free]:
        """Stamps or withdraws admissions of older terms, which are counted last. Returns what no job holds."""
        current: list[Piece] = []
        older: list[tuple[Job, Gang]] = []
        for job in held.jobs:
            if job.id not in held.placed:
                continue  # its Guardian ends it; until then the cluster's own count is used
            gang, placement = held.placed[job.id]
            if job.dispatcher_term > self.term:
                raise StaleFence("a newer dispatcher leads")
            if job.dispatcher_term < self.term and not job.attempt.committed and job.verdict is None:
                older.append((job, gang))
            else:
                current += pieces(gang, placement)
        free = subtract(held.beside_unreadable(), current)
        for job, gang in older:
            if fits_as_placed(free, gang, job.attempt.placement):
                await self._change(job.id, self._stamped)
            else:
                await self._change(job.id, self._withdrawn)
                self.instrumentation.withdrawn.inc()
            free = subtract(free, pieces(gang, job.attempt.placement))  # a withdrawn one, too, until it is released
        return free

    def _stamped(self, job: Job) -> Job:
        return replace(job, dispatcher_term=self.term) if job.holds else job

    def _withdrawn(self, job: Job) -> Job:
        """The job with a verdict by which its Guardian gives back what it may have and queues the job again."""
        if not job.holds or job.verdict is not None or job.attempt.committed or job.dispatcher_term > self.term:
            return job
        message = "the former dispatcher had not counted every job: its place was given to others"
        verdict = Verdict(to=Status.QUEUED, reason="AdmissionWithdrawn", message=message, time=self.clock.now_ms())
        return replace(job, verdict=verdict, attempt=replace(job.attempt, direction="undo"))

    async def _hold(self, nodes: Sequence[Node]) -> Hold | None:
        """Why nothing may be admitted: the platform stops, or a store's disk is almost full, or that of every node."""
        is_stopping, of_stores = False, ""
        if self.stopping is not None or self.free_space is not None:
            is_stopping, of_stores = await asyncio.to_thread(self._read_files)
        if is_stopping:
            message = "the platform is being stopped; it starts after the next `weft up`"
            return Hold(PendingReason.PLATFORM_STOPPING, message)
        of_nodes = [node.pressure for node in nodes if node.ready]
        shortage = of_stores or (of_nodes[0] if of_nodes and all(of_nodes) else "")
        return Hold(PendingReason.WAITING_FOR_DISK, f"{shortage}; it starts when there is room") if shortage else None

    def _read_files(self) -> tuple[bool, str]:
        """Whether the platform is being stopped, and which disk of the stores is almost full; empty: none. Blocks."""
        is_stopping = self.stopping is not None and self.stopping()
        return is_stopping, self.free_space.shortage() if self.free_space is not None else ""

    def _record_hold(self, hold: Hold | None) -> None:
        if (hold is not None) != self._is_held:
            self._is_held = hold is not None
            self.instrumentation.held.set(self._is_held)
            log.warning("admission.held", why=hold.message) if hold is not None else log.info("admission.continued")

    async def _walk_queue(self, free: Sequence[Free], held: _Held) -> tuple[QueueWalk, list[Decision]]:
        """Decides for the waiting jobs in the policy's order, ``queue_scan`` at a time, until the policy is blocked."""
        open_nodes = {node.name for node in held.nodes if not node.pressure and held.hold is None}
        usable = [node for node in free if node.node in open_nodes]
        walk = self._policy(free=usable, capacity=held.capacity, now=self.clock.now_ms())
        if held.hold is not None:
            walk = HeldWalk(walk, held.hold)
        decisions: list[Decision] = []
        after: str | None = None
        while True:
            scanned = await self._queue.scan(after=after, limit=self.settings.queue_scan)
            if self._not_ready:
                scanned = [self._marked(waiter) for waiter in scanned]
            decisions += [walk.decide(waiter) for waiter in walk.order(scanned)]
            if len(scanned) < self.settings.queue_scan or walk.blocked:
                return walk, decisions
            after = scanned[-1].id
            await asyncio.sleep(0)  # a long queue in memory must not keep this process from renewing its lease

    async def _admit(self, decision: Decision, placement: Mapping[str, str]) -> bool:
        """Admits the job unless it has changed since it was read. Returns whether it was admitted."""
        if (await self.jobs.dispatcher()).term != self.term:
            raise StaleFence("a newer dispatcher leads")
        if not await self._prepare(decision.job.tenant):
            return False
        now = self.clock.now_ms()

        def change(job: Job) -> Job:
            if job.status is not Status.QUEUED or job.holds or job.deleted is not None:
                return job
            return admitted(job, placement=placement, dispatcher_term=self.term, now=now)

        try:
            job = await self._change(decision.job.id, change)
        except Unavailable as error:
            # The write may still arrive when another job has the place. Under a new term it is judged as an older one.
            raise StaleFence(f"an admission may arrive late; a new term is needed: {error}") from error
        if job is None or job.attempt.number != decision.job.attempt + 1 or job.dispatcher_term != self.term:
            return False
        log.info("job.admitted", job=job.id, attempt=job.attempt.number, trace=job.trace)
        with structlog.contextvars.bound_contextvars(traceparent=job.trace):
            await self.hints.send("admitted", job.id)
        return True

    async def _prepare(self, tenant: str) -> bool:
        """Makes the cluster ready for a tenant. False if that fails: jobs of the tenant then hold up no others."""
        self._not_ready.pop(tenant, None)
        try:
            await self.cluster.prepare(tenant)
        except WeftError as error:
            log.warning("tenant.not_prepared", tenant=tenant, why=str(error))
            self._not_ready[tenant] = str(error)
            return False
        return True

    async def _prepare_again(self) -> None:
        """Tries the tenants for which it failed, until it fails again: one failure in each round costs little."""
        for tenant in list(self._not_ready):
            if not await self._prepare(tenant):
                return

    def _marked(self, waiter: Waiter) -> Waiter:
        """The waiting job; that of a tenant that is not ready says so, and the policy then keeps no hardware for it."""
        why = self._not_ready.get(waiter.tenant)
        return waiter if why is None else replace(waiter, not_ready=why)

    # --- whether a gang fits ---------------------------------------------------------

    async def fit(self, spec: JobSpec) -> Fit:
        """Whether a job of this spec would be admitted if it were submitted now. Raises as ``snapshot``."""
        return (await self.snapshot()).fit(gang_of(spec, self.sizes, self._least, self.overhead))

    async def decisions(self) -> Mapping[str, Decision]:
        """For the jobs that wait, by id, in order: of the last round; of a process that does not lead: ``snapshot``.

        Raises as ``snapshot``.
        """
        return self.waiting if self.term else (await self.snapshot()).waiting

    async def snapshot(self) -> Snapshot:
        """The cluster and the queue, at most two sweeps old: of the last round, or read now if that is older.

        A process that does not lead gives the same answers: it reads, and admits nothing. Raises Unavailable if the
        cluster or the job store does not answer.
        """
        if self._snapshot is not None and self._is_fresh(self._snapshot):
            return self._snapshot
        async with self._reading:
            if self._snapshot is None or not self._is_fresh(self._snapshot):
                self._snapshot = await self._read_snapshot()
            return self._snapshot

    def _is_fresh(self, snapshot: Snapshot) -> bool:
        return self.clock.boottime() - snapshot.time_s <= _FRESH_SWEEPS * self.settings.sweep_s

    async def _read_snapshot(self) -> Snapshot:
        time_s = self.clock.boottime()
        held = await self._read_held()
        await self._queue.refresh(held.by_id())
        walk, decisions = await self._walk_queue(held.free(), held)
        self._forget_others({*held.by_id(), *self._queue.ids})
        return Snapshot(held.nodes, held.placed, held.unreadable, walk, time_s, _without_placement(decisions))

    # --- jobs that waited too long ---------------------------------------------------

    async def _fail_if_expired(self, waiter: Waiter) -> None:
        """Fails a job that waited longer than its ``max_pending``."""
        now, limit = self.clock.now_ms(), waiter.gang.max_pending if waiter.gang else None
        if limit is None or now < waiter.since + limit:
            return
        message = f"it waited longer than its max_pending ({format_duration(limit)}) for hardware"

        def change(current: Job) -> Job:
            if current.status is not Status.QUEUED or current.holds or current.state.since != waiter.since:
                return current
            return moved(current, Status.FAILED, actor="lcm", now=now, reason="Unschedulable", message=message)

        await self._change(waiter.id, change)

    # --- helpers ---------------------------------------------------------------------

    async def _change(self, job_id: str, change: Callable[[Job], Job]) -> Job | None:
        """The job after ``change``, or None if this job cannot be changed: other jobs must not suffer from that.

        Raises Unavailable.
        """
        try:
            return await update(self.jobs, job_id, None, change)
        except Unavailable:
            raise
        except WeftError as error:
            log.warning("job.not_changed", job=job_id, why=str(error))
            return None

    def _gang(self, job: Job) -> Gang | None:
        """The gang of the job's spec, parsed once. None if the spec cannot be read: then it is in quarantine."""
        fingerprint, known = hash(repr(job.spec)), self._gangs.get(job.id)
        if known is None or known[0] != fingerprint:
            try:
                gang = gang_of(parse_spec(job.spec), self.sizes, self._least, self.overhead)
                known = (fingerprint, self._shared_gangs.setdefault(gang, gang))
            except InvalidSpec as error:
                known = (fingerprint, None)
                why = f"the spec of job {job.id} cannot be read: {error}"
                self.quarantine.hold(JOB, _spec_place(job.id), why, job=job.id, advice=_SPEC_ADVICE)
            else:
                self.quarantine.release(JOB, _spec_place(job.id))
            self._gangs[job.id] = known
        return known[1]

    def _forget_others(self, job_ids: Collection[str]) -> None:
        """Forgets the gangs of all jobs but these."""
        for job_id in self._gangs.keys() - job_ids:
            self.quarantine.release(JOB, _spec_place(job_id))
        self._gangs = {job_id: known for job_id, known in self._gangs.items() if job_id in job_ids}
        self._shared_gangs = {gang: gang for _, gang in self._gangs.values() if gang is not None}


def _spec_place(job_id: str) -> str:
    return f"{job_id}/spec"


def _without_placement(decisions: Sequence[Decision]) -> dict[str, Decision]:
    """Those that do not admit their job, by its id, in order."""
    return {decision.job.id: decision for decision in decisions if decision.placement is None}
