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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from services.core.domain.errors import InvalidSpec, StaleFence, Unavailable, WeftError
from services.core.domain.job import Job, Verdict, admitted, moved
from services.core.domain.sizes import SIZES, Size
from services.core.domain.spec import parse_spec
from services.core.domain.status import Status
from services.core.domain.units import format_duration
from services.core.ports.clock import Clock
from services.core.ports.cluster import Cluster
from services.core.ports.hints import Hints
from services.core.ports.job_store import DispatcherDoc, JobQuery, JobStore, Unreadable
from services.core.ports.status_store import Lease, StatusStore
from services.core.runtime.membership import Membership, members
from services.core.runtime.quarantine import JOB, Quarantine
from services.core.use_cases.jobs import all_jobs, update
from services.lcm.instrumentation import Instrumentation
from services.lcm.scheduling import fifo
from services.lcm.scheduling.placement import Free, Gang, Placed, fits_at, gang, taken, whole, without
from services.lcm.settings import LcmSettings
from services.lcm.unreadable import UnreadableJobs

LEADER_KEY: Final = "/lcm/leader"
_PAGE: Final = 250
"""Of documents that are in memory at once."""
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
    instrumentation: Instrumentation
    quarantine: Quarantine
    sizes: Mapping[str, Size] = field(default_factory=lambda: dict(SIZES))
    waiting: Sequence[fifo.Decision] = ()
    """The last round's decisions on those that wait, in order: what ``Explain`` answers."""
    term: int = 0
    """Of this dispatcher while it leads; else 0."""
    _gangs: dict[str, tuple[int, Gang | None]] = field(default_factory=dict)
    """Of each job that waits or holds: its spec's fingerprint, and what was made of it."""
    _alike: dict[Gang, Gang] = field(default_factory=dict)
    """Equal ones are kept once."""
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
                with self.instrumentation.round_s.time():
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
        self.instrumentation.term.set(term)

    # --- one round -----------------------------------------------------------------

    async def round(self) -> int:
        """Looks at everything once and admits what fits; how many were admitted. StaleFence: another leads."""
        capacity = whole(await self.cluster.capacity())
        left_out: list[Unreadable] = []
        query = JobQuery(holding=True, deleted=True)
        holding = [job async for job in all_jobs(self.jobs, query, left_out=left_out)]
        gangs = {job.id: (its, job.attempt.placement) if (its := self._gang(job)) else None for job in holding}
        others = await self.unreadable.pieces(gangs, left_out)
        free = await self._free(without(capacity, others), holding)
        decisions = await self._decide(free, capacity)
        self.waiting = [decision for decision in decisions if decision.placement is None]
        self.instrumentation.waiting(decision.job.gang for decision in self.waiting)
        self.instrumentation.holding.set(len(holding))
        done = 0
        for decision in decisions:
            its, placement = decision.job.gang, decision.placement
            if its is not None and placement is not None and await self._admit(decision, placement):
                self.instrumentation.admitted(its)
                done += 1
        queue = [decision.job for decision in decisions]
        for waiter in [*queue, *await self._out_of_sight(queue)]:
            await self._give_up(waiter)
        self._forget({job.id for job in holding} | {waiter.id for waiter in queue})
        return done

    async def _free(self, capacity: Sequence[Free], holding: Sequence[Job]) -> Sequence[Free]:
        """What nobody holds. Admissions of older dispatchers are judged here: they are counted last."""
        placed: list[Placed] = []
        old: list[tuple[Job, Gang]] = []
        for job in holding:
            its = self._gang(job)
            if its is None:
                continue  # its Guardian ends it; until then what the cluster says is counted
            if job.dispatcher_term > self.term:
                raise StaleFence("a newer dispatcher leads")
            if job.dispatcher_term < self.term and not job.attempt.committed and job.verdict is None:
                old.append((job, its))
            else:
                placed.append((its, job.attempt.placement))
        free = taken(capacity, placed)
        for job, its in old:
            if fits_at(free, its, job.attempt.placement):
                await self._change(job.id, self._stamped)
            else:
                await self._change(job.id, self._withdrawn)
                self.instrumentation.withdrawn.inc()
            free = taken(free, [(its, job.attempt.placement)])  # until it is released, in any case
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

    async def _decide(self, free: Sequence[Free], capacity: Sequence[Free]) -> list[fifo.Decision]:
        """What happens to each that waits, up to one that waits for hardware and a part of those behind it."""
        queue: list[fifo.Waiter] = []
        while True:
            scanned = await self._queued(queue[-1].id if queue else None)
            queue += scanned
            decisions = fifo.decide(queue, free=free, capacity=capacity, now=self.clock.now_ms())
            blocked = any(decision.pending_reason == fifo.BLOCKS for decision in decisions)
            if len(scanned) < self.settings.queue_scan or blocked:
                return decisions

    async def _queued(self, after: str | None) -> list[fifo.Waiter]:
        """The next ``queue_scan`` of those that wait. Their documents are read a page at a time, and let go."""
        found: list[fifo.Waiter] = []
        while limit := min(_PAGE, self.settings.queue_scan - len(found)):
            query = JobQuery(statuses=(Status.QUEUED,), after=after)
            page = await self.jobs.find(query, newest_first=False, limit=limit)
            found += [fifo.Waiter.of(job, self._gang(job)) for job in page]
            if len(page) < limit:
                break
            after = page[-1].id
        return found

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
            job = await self._change(decision.job.id, change)
        except Unavailable as error:
            # It may be written yet, when its place is another's: under an older term it is judged before it counts.
            raise StaleFence(f"an admission may come late; to lead anew, under a new term: {error}") from error
        if job is None or job.attempt.number != decision.job.attempt + 1 or job.dispatcher_term != self.term:
            return False
        log.info("job.admitted", job=job.id, attempt=job.attempt.number, trace=job.trace)
        with structlog.contextvars.bound_contextvars(traceparent=job.trace):
            await self.hints.send("admitted", job.id)
        return True

    # --- waiting too long ----------------------------------------------------------

    async def _out_of_sight(self, queue: Sequence[fifo.Waiter]) -> list[fifo.Waiter]:
        """Some of those beyond the scanned part of the queue, others each round: they, too, may wait too long."""
        if len(queue) < self.settings.queue_scan:
            self._beyond = None
            return []
        last = queue[-1].id
        found = await self._queued(max(last, self._beyond or last))
        self._beyond = found[-1].id if found else None
        return found

    async def _give_up(self, waiter: fifo.Waiter) -> None:
        """A job that waited longer than its ``max_pending`` fails, and says so."""
        now, limit = self.clock.now_ms(), waiter.gang.max_pending if waiter.gang else None
        if limit is None or now < waiter.since + limit:
            return
        message = f"it waited longer than its max_pending ({format_duration(limit)}) for hardware"

        def change(current: Job) -> Job:
            if current.status is not Status.QUEUED or current.holds or current.state.since != waiter.since:
                return current
            return moved(current, Status.FAILED, actor="lcm", now=now, reason="Unschedulable", message=message)

        await self._change(waiter.id, change)

    # --- inside --------------------------------------------------------------------

    async def _change(self, job_id: str, change: Callable[[Job], Job]) -> Job | None:
        """The job as it is now; None where this one cannot be changed, which harms no other."""
        try:
            return await update(self.jobs, job_id, None, change)
        except Unavailable:
            raise
        except WeftError as error:
            log.warning("job.not_changed", job=job_id, why=str(error))
            return None

    def _gang(self, job: Job) -> Gang | None:
        """Of the job's spec, parsed once; None, and quarantine, where it cannot be read."""
        fingerprint, known = hash(repr(job.spec)), self._gangs.get(job.id)
        if known is None or known[0] != fingerprint:
            try:
                its = gang(parse_spec(job.spec), self.sizes)
                known = (fingerprint, self._alike.setdefault(its, its))
            except InvalidSpec as error:
                known = (fingerprint, None)
                why = f"the spec of job {job.id} cannot be read: {error}"
                self.quarantine.hold(JOB, _spec_place(job.id), why, job=job.id, advice=_SPEC_ADVICE)
            else:
                self.quarantine.release(JOB, _spec_place(job.id))
            self._gangs[job.id] = known
        return known[1]

    def _forget(self, there: Collection[str]) -> None:
        """All but these jobs."""
        for job_id in self._gangs.keys() - there:
            self.quarantine.release(JOB, _spec_place(job_id))
        self._gangs = {job_id: known for job_id, known in self._gangs.items() if job_id in there}
        self._alike = {its: its for _, its in self._gangs.values() if its is not None}


def _spec_place(job_id: str) -> str:
    return f"{job_id}/spec"
