"""The dispatcher: one at a time, it admits waiting gangs that fit as a whole.

Leadership is a key in etcd on a lease, but nothing rests on it: the ``dispatcher`` document's term does. A new leader
raises the term by compare-and-set and only then scans what is held; every admission carries the term, and a Guardian
waits where the term of its admission is not the current one. So two dispatchers that both believe to lead cannot both
get a job provisioned: admissions of the older one are stamped anew (they count as held) or never take effect.

Free = capacity - unreleased admissions. Status is not asked: a job that has ended but not released still holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog
from prometheus_client import Counter, Gauge

from services.core.domain.errors import InvalidSpec, StaleFence, StaleRevision, Unavailable, WeftError
from services.core.domain.job import Job, admitted, moved
from services.core.domain.sizes import SIZES, Size
from services.core.domain.spec import JobSpec, parse_spec
from services.core.domain.status import Status
from services.core.domain.units import format_duration
from services.core.jobs import copy_history, update
from services.core.members import Membership
from services.core.ports.clock import Clock
from services.core.ports.cluster import Cluster, Node
from services.core.ports.hints import Hints
from services.core.ports.job_store import DispatcherDoc, JobQuery, JobStore
from services.core.ports.status_store import Lease, StatusStore
from services.lcm.scheduling import fifo
from services.lcm.scheduling.placement import Free, taken, whole
from services.lcm.settings import LcmSettings

LEADER_KEY: Final = "/lcm/leader"
log = structlog.get_logger()

_admitted = Counter("lcm_admissions_total", "Gangs admitted")
_waiting = Gauge("lcm_queue_size", "Jobs that wait")
_held = Gauge("lcm_jobs_holding", "Jobs that hold hardware")
_term = Gauge("lcm_dispatcher_term", "Term of this dispatcher while it leads; 0: it does not")


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
    sizes: Mapping[str, Size] = field(default_factory=lambda: dict(SIZES))
    waiting: list[fifo.Decision] = field(default_factory=list)
    """The last round's decisions on those that wait, in order: what ``Explain`` answers."""
    nodes: Sequence[Node] = ()
    _doc: DispatcherDoc = field(default_factory=DispatcherDoc)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        self._wake.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Leads whenever it can, until ``stopping``."""
        while not stopping.is_set():
            lease = self.membership.lease
            if lease is not None and lease.alive:
                try:
                    await self._lead(lease, stopping)
                except (WeftError, TimeoutError) as error:
                    log.warning("dispatcher.interrupted", why=str(error))
                finally:
                    _term.set(0)
            await self._pause(stopping)

    async def _lead(self, lease: Lease, stopping: asyncio.Event) -> None:
        mine = f'"{self.membership.id}"'
        if await self.status.put_if(LEADER_KEY, mine, mod_revision=0, lease=lease) is None:
            held = await self.status.get(LEADER_KEY)
            if held is None or held.value != mine:
                return  # another leads; look again after a pause
        prior = await self.jobs.dispatcher()
        self._doc = await self.jobs.replace_dispatcher(
            prior, DispatcherDoc(term=prior.term + 1, holder=self.membership.id, rev=prior.rev)
        )
        _term.set(self._doc.term)
        log.info("dispatcher.leads", term=self._doc.term)
        await self._stamp_anew()
        while not stopping.is_set() and lease.alive:
            self._wake.clear()
            await self.round(lease)
            await self._pause(stopping)

    async def _pause(self, stopping: asyncio.Event) -> None:
        """Until woken, told to stop, or the sweep's time has come."""
        waits = [asyncio.ensure_future(self._wake.wait()), asyncio.ensure_future(stopping.wait())]
        await asyncio.wait(waits, timeout=self.settings.sweep_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _stamp_anew(self) -> None:
        """Admissions of an older term that took no effect yet become ours: they are counted as held either way."""
        for job in await self._all(JobQuery(holding=True)):
            if job.dispatcher_term != self._doc.term and not job.attempt.committed:
                await update(self.jobs, job.id, None, self._stamped)

    def _stamped(self, job: Job) -> Job:
        return replace(job, dispatcher_term=self._doc.term) if job.holds else job

    async def round(self, lease: Lease) -> int:
        """Looks at everything once and admits what fits; how many were admitted."""
        self.nodes = await self.cluster.capacity()
        holding = await self._all(JobQuery(holding=True))
        capacity = whole(self.nodes)
        free: Sequence[Free] = capacity
        for job in holding:
            spec = self._spec(job)
            if spec is not None:
                free = taken(free, spec, job.attempt.placement, self.sizes)
        queued = await self.jobs.find(
            JobQuery(statuses=(Status.QUEUED,)), newest_first=False, limit=self.settings.queue_scan
        )
        queue = [(job, spec) for job in queued if (spec := self._spec(job)) is not None]
        decisions = fifo.decide(queue, free=free, capacity=capacity, sizes=self.sizes, now=self.clock.now_ms())
        self.waiting = [decision for decision in decisions if decision.placement is None]
        _waiting.set(len(self.waiting))
        _held.set(len(holding))
        done = 0
        for decision in decisions:
            if decision.placement is not None and lease.alive:
                done += await self._admit(decision)
        for job, spec in queue:
            await self._give_up(job, spec)
        return done

    async def _give_up(self, job: Job, spec: JobSpec) -> None:
        """A job that waited longer than its ``max_pending`` fails, and says so."""
        now = self.clock.now_ms()
        if spec.max_pending is None or now < job.state.since + spec.max_pending:
            return
        message = f"it waited longer than its max_pending ({format_duration(spec.max_pending)}) for hardware"

        def change(current: Job) -> Job:
            if current.status is not Status.QUEUED or current.holds or current.state.since != job.state.since:
                return current
            return moved(current, Status.FAILED, actor="lcm", now=now, reason="Unschedulable", message=message)

        await update(self.jobs, job.id, None, change)

    async def _admit(self, decision: fifo.Decision) -> bool:
        placement, now = dict(decision.placement or {}), self.clock.now_ms()

        def change(job: Job) -> Job:
            if job.status is not Status.QUEUED or job.holds or job.deleted is not None:
                raise StaleFence("it changed since it was looked at")
            return admitted(job, placement=placement, dispatcher_term=self._doc.term, now=now)

        current = await self.jobs.dispatcher()
        if current.term != self._doc.term:
            raise StaleRevision(f"a newer dispatcher leads (term {current.term})")
        try:
            job = await update(self.jobs, decision.job.id, None, change)
        except StaleFence:
            return False
        _admitted.inc()
        log.info("job.admitted", job=job.id, attempt=job.attempt.number, trace=job.trace)
        await self.hints.send("admitted", job.id)
        return True

    async def _all(self, query: JobQuery) -> list[Job]:
        out: list[Job] = []
        while page := await self.jobs.find(
            replace(query, after=out[-1].id if out else None), newest_first=False, limit=1000
        ):
            out.extend(page)
            if len(page) < 1000:
                break
        return out

    def _spec(self, job: Job) -> JobSpec | None:
        """The job's spec; a malformed one harms its own job only."""
        try:
            return parse_spec(job.spec)
        except InvalidSpec as error:
            log.error("job.unreadable_spec", job=job.id, why=str(error))  # noqa: TRY400 - the message says it all
            return None


async def sweep(jobs: JobStore, *, limit: int) -> int:
    """Copies histories that lie in documents only; how many documents were looked at. Anyone may run it, any time."""
    found = await jobs.find(JobQuery(untrimmed=True, deleted=True), newest_first=False, limit=limit)
    for job in found:
        try:
            await copy_history(jobs, job)
        except Unavailable:
            raise
        except WeftError as error:  # one document's trouble is not its neighbours'
            log.warning("history.not_copied", job=job.id, why=str(error))
    return len(found)
