"""The dispatcher: one at a time, it admits waiting gangs that fit as a whole.

Leadership is a key in etcd on a lease, but nothing rests on it: the ``dispatcher`` document's term does. A new leader
raises the term by compare-and-set and only then scans what is held; every admission carries the term, and a Guardian
waits where the term of its admission is not the current one. So two dispatchers that both believe to lead cannot both
get a job provisioned: an admission of the older one is stamped anew where it fits beside all others, and taken back by
a verdict where it does not.

Free = capacity - unreleased admissions - what others have. Status is not asked: a job that has ended but not released
still holds, and so does one whose document cannot be read (``unreadable``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from services.core.domain.errors import InvalidSpec, StaleFence, Unavailable, WeftError
from services.core.domain.job import Job, Verdict, admitted, moved
from services.core.domain.sizes import SIZES, Size
from services.core.domain.spec import JobSpec, parse_spec
from services.core.domain.status import Status
from services.core.domain.units import format_duration
from services.core.jobs import every, update
from services.core.members import Membership, members
from services.core.ports.clock import Clock
from services.core.ports.cluster import Cluster
from services.core.ports.hints import Hints
from services.core.ports.job_store import DispatcherDoc, JobQuery, JobStore, Unreadable
from services.core.ports.status_store import Lease, StatusStore
from services.core.quarantine import JOB, Quarantine
from services.lcm.meters import Meters
from services.lcm.scheduling import fifo
from services.lcm.scheduling.placement import Free, Placed, fits_at, taken, whole, without
from services.lcm.settings import LcmSettings
from services.lcm.unreadable import UnreadableJobs

LEADER_KEY: Final = "/lcm/leader"
_SPEC_ADVICE: Final = "`weft kill` it, and submit it anew"
log = structlog.get_logger()


@dataclass
class Dispatcher:
    """Call ``run()`` once; ``wake()`` whenever something may have changed."""

    jobs: JobStore
    status: StatusStore
    cluster: Cluster
    hints: Hints
    clock: Clock
    settings: LcmSettings
    membership: Membership
    meters: Meters
    quarantine: Quarantine
    sizes: Mapping[str, Size] = field(default_factory=lambda: dict(SIZES))
    waiting: Sequence[fifo.Decision] = ()
    """The last round's decisions on those that wait, in order: what ``Explain`` answers."""
    term: int = 0
    """Of this dispatcher while it leads; else 0."""
    _specs: dict[str, tuple[Mapping[str, Any], JobSpec | None]] = field(default_factory=dict)
    _beyond: str | None = None
    """Up to this id the jobs beyond the scanned part of the queue were asked for their ``max_pending``."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.unreadable = UnreadableJobs(self.jobs, self.cluster, self.quarantine, self.sizes)

    def wake(self) -> None:
        """Something may have changed: the next round is now."""
        self._wake.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Leads whenever it can, until ``stopping``."""
        while not stopping.is_set():
            self._wake.clear()
            lease = self.membership.lease
            if lease is not None and lease.alive:
                try:
                    if await self._rise(lease):
                        await self._lead(lease, stopping)
                except WeftError as error:
                    log.warning("dispatcher.interrupted", why=str(error))
                except Exception:  # the edge of a loop: a fault of ours must not end it for good
                    log.exception("dispatcher.failed")
                finally:
                    self._set_term(0)
                    self.waiting = ()
            await self._pause(stopping)

    # --- leading -------------------------------------------------------------------

    async def _rise(self, lease: Lease) -> bool:
        """Becomes the leader, unless another is."""
        mine = f'"{self.membership.id}"'
        held = await self.status.get(LEADER_KEY)
        if held is not None and held.value != mine and await self._lives(held.value):
            return False
        # Ours may hang on a lease that we have lost since: it is written anew, on the one we have.
        revision = held.mod_revision if held is not None else 0
        if await self.status.put_if(LEADER_KEY, mine, mod_revision=revision, lease=lease) is None:
            return False
        prior = await self.jobs.dispatcher()
        raised = await self.jobs.replace_dispatcher(
            prior, DispatcherDoc(term=prior.term + 1, holder=self.membership.id, rev=prior.rev)
        )
        self._set_term(raised.term)
        log.info("dispatcher.leads", term=self.term)
        return True

    async def _lives(self, value: str) -> bool:
        """Whether this is the name of another LCM that lives: a key that nobody's lease removes must not rule us."""
        others = await members(self.status, self.membership.service)
        return value.strip('"') in others

    async def _lead(self, lease: Lease, stopping: asyncio.Event) -> None:
        while not stopping.is_set() and lease.alive:
            self._wake.clear()
            try:
                with self.meters.round_s.time():
                    await self.round()
            except StaleFence:
                raise
            except WeftError as error:  # somebody is away: we go on leading
                log.warning("dispatcher.round_interrupted", why=str(error))
            except Exception:  # the edge of a loop, as above; who leads goes on leading
                log.exception("dispatcher.round_failed")
            await self._pause(stopping)

    async def _pause(self, stopping: asyncio.Event) -> None:
        """Until woken, told to stop, or the sweep's time has come."""
        waits = [asyncio.ensure_future(self._wake.wait()), asyncio.ensure_future(stopping.wait())]
        await asyncio.wait(waits, timeout=self.settings.sweep_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def _set_term(self, term: int) -> None:
        self.term = term
        self.meters.term.set(term)

    # --- one round -----------------------------------------------------------------

    async def round(self) -> int:
        """Looks at everything once and admits what fits; how many were admitted. StaleFence: another leads."""
        capacity = whole(await self.cluster.capacity())
        left_out: list[Unreadable] = []
        query = JobQuery(holding=True, deleted=True)
        holding = [job async for job in every(self.jobs, query, left_out=left_out)]
        gangs = {job.id: (spec, job.attempt.placement) if (spec := self._spec(job)) else None for job in holding}
        others = await self.unreadable.pieces(gangs, left_out)
        free = await self._free(without(capacity, others), holding)
        queue, decisions = await self._decide(free, capacity)
        self.waiting = [decision for decision in decisions if decision.placement is None]
        specs = {job.id: spec for job, spec in queue}
        self.meters.waiting(specs[decision.job.id] for decision in self.waiting)
        self.meters.holding.set(len(holding))
        done = 0
        for decision in decisions:
            spec, placement = specs[decision.job.id], decision.placement
            if spec is not None and placement is not None and await self._admit(decision, placement):
                self.meters.admitted(spec)
                done += 1
        for job, spec in [*queue, *await self._out_of_sight(queue)]:
            await self._give_up(job, spec)
        self._forget(holding, queue)
        return done

    async def _free(self, capacity: Sequence[Free], holding: Sequence[Job]) -> Sequence[Free]:
        """What nobody holds. Admissions of older dispatchers are judged here: they are counted last."""
        placed: list[Placed] = []
        old: list[tuple[Job, JobSpec]] = []
        for job in holding:
            spec = self._spec(job)
            if spec is None:
                continue  # its Guardian ends it; until then what the cluster says is counted
            if job.dispatcher_term > self.term:
                raise StaleFence("a newer dispatcher leads")
            if job.dispatcher_term < self.term and not job.attempt.committed and job.verdict is None:
                old.append((job, spec))
            else:
                placed.append((spec, job.attempt.placement))
        free = taken(capacity, placed, self.sizes)
        for job, spec in old:
            if fits_at(free, spec, job.attempt.placement, self.sizes):
                await self._change(job, self._stamped)
            else:
                await self._change(job, self._withdrawn)
                self.meters.withdrawn.inc()
            free = taken(free, [(spec, job.attempt.placement)], self.sizes)  # until it is released, in any case
        return free

    def _stamped(self, job: Job) -> Job:
        return replace(job, dispatcher_term=self.term) if job.holds else job

    def _withdrawn(self, job: Job) -> Job:
        """Its Guardian gives back what it may have got already, and queues it again."""
        if not job.holds or job.verdict is not None or job.attempt.committed or job.dispatcher_term > self.term:
            return job
        message = "the dispatcher before had not counted everything: its place was given to others"
        verdict = Verdict(to=Status.QUEUED, reason="AdmissionWithdrawn", message=message, time=self.clock.now_ms())
        return replace(job, verdict=verdict, attempt=replace(job.attempt, direction="undo"))

    async def _decide(
        self, free: Sequence[Free], capacity: Sequence[Free]
    ) -> tuple[list[tuple[Job, JobSpec | None]], list[fifo.Decision]]:
        """Those that wait, up to one that waits for hardware, and what happens to each."""
        queue: list[tuple[Job, JobSpec | None]] = []
        while True:
            after = queue[-1][0].id if queue else None
            page = await self._queued(after)
            queue += [(job, self._spec(job)) for job in page]
            decisions = fifo.decide(queue, free=free, capacity=capacity, sizes=self.sizes, now=self.clock.now_ms())
            blocked = any(decision.pending_reason == fifo.BLOCKS for decision in decisions)
            if len(page) < self.settings.queue_scan or blocked:
                return queue, decisions

    async def _queued(self, after: str | None) -> Sequence[Job]:
        query = JobQuery(statuses=(Status.QUEUED,), after=after)
        return await self.jobs.find(query, newest_first=False, limit=self.settings.queue_scan)

    async def _admit(self, decision: fifo.Decision, placement: Mapping[str, str]) -> bool:
        """Whether it is admitted now; not where it has changed since it was looked at."""
        if (await self.jobs.dispatcher()).term != self.term:
            raise StaleFence("a newer dispatcher leads")
        now = self.clock.now_ms()

        def change(job: Job) -> Job:
            if job.status is not Status.QUEUED or job.holds or job.deleted is not None:
                return job
            return admitted(job, placement=placement, dispatcher_term=self.term, now=now)

        try:
            job = await self._change(decision.job, change)
        except Unavailable as error:
            # It may be written yet, when its place is another's: under an older term it is judged before it counts.
            raise StaleFence(f"an admission may come late; to lead anew, under a new term: {error}") from error
        if job is None or job.attempt.number != decision.job.attempt.number + 1 or job.dispatcher_term != self.term:
            return False
        log.info("job.admitted", job=job.id, attempt=job.attempt.number, trace=job.trace)
        with structlog.contextvars.bound_contextvars(traceparent=job.trace):
            await self.hints.send("admitted", job.id)
        return True

    # --- waiting too long ----------------------------------------------------------

    async def _out_of_sight(self, queue: Sequence[tuple[Job, JobSpec | None]]) -> list[tuple[Job, JobSpec | None]]:
        """Some of those beyond the scanned part of the queue, others each round: they, too, may wait too long."""
        if len(queue) < self.settings.queue_scan:
            self._beyond = None
            return []
        last = queue[-1][0].id
        page = await self._queued(max(last, self._beyond or last))
        self._beyond = page[-1].id if page else None
        return [(job, self._spec(job)) for job in page]

    async def _give_up(self, job: Job, spec: JobSpec | None) -> None:
        """A job that waited longer than its ``max_pending`` fails, and says so."""
        now = self.clock.now_ms()
        if spec is None or spec.max_pending is None or now < job.state.since + spec.max_pending:
            return
        message = f"it waited longer than its max_pending ({format_duration(spec.max_pending)}) for hardware"

        def change(current: Job) -> Job:
            if current.status is not Status.QUEUED or current.holds or current.state.since != job.state.since:
                return current
            return moved(current, Status.FAILED, actor="lcm", now=now, reason="Unschedulable", message=message)

        await self._change(job, change)

    # --- inside --------------------------------------------------------------------

    async def _change(self, job: Job, change: Callable[[Job], Job]) -> Job | None:
        """The job as it is now; None where this one cannot be changed, which harms no other."""
        try:
            return await update(self.jobs, job.id, None, change)
        except Unavailable:
            raise
        except WeftError as error:
            log.warning("job.not_changed", job=job.id, why=str(error), trace=job.trace)
            return None

    def _spec(self, job: Job) -> JobSpec | None:
        """The job's spec, parsed once; None, and quarantine, where it cannot be read."""
        known = self._specs.get(job.id)
        if known is None or known[0] != job.spec:
            try:
                known = (job.spec, parse_spec(job.spec))
            except InvalidSpec as error:
                known = (job.spec, None)
                why = f"the spec of job {job.id} cannot be read: {error}"
                self.quarantine.hold(JOB, _spec_place(job.id), why, job=job.id, advice=_SPEC_ADVICE)
            else:
                self.quarantine.release(JOB, _spec_place(job.id))
            self._specs[job.id] = known
        return known[1]

    def _forget(self, holding: Sequence[Job], queue: Sequence[tuple[Job, JobSpec | None]]) -> None:
        there = {job.id for job in holding} | {job.id for job, _ in queue}
        for job_id in self._specs.keys() - there:
            self.quarantine.release(JOB, _spec_place(job_id))
        self._specs = {job_id: known for job_id, known in self._specs.items() if job_id in there}


def _spec_place(job_id: str) -> str:
    return f"{job_id}/spec"
