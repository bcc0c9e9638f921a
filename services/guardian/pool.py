"""Many Guardians in one process, each an asyncio task; all keys of the process hang on its one lease.

A hint makes a Guardian start or look at once; a sweep over all jobs that hold hardware finds whatever a hint missed:
admitted jobs without a Guardian, jobs of dead processes, wishes nobody told us of. One job's trouble is its own: it is
logged, and tried again after waits that double.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import structlog

from services.core.domain.errors import StaleFence, Unavailable, WeftError
from services.core.domain.job import Job
from services.core.domain.status_keys import member_key
from services.core.ports.job_store import JobQuery
from services.core.ports.status_store import Lease
from services.core.runtime.membership import Membership, members
from services.core.runtime.quarantine import Quarantine
from services.core.use_cases.jobs import all_jobs
from services.guardian.actor import Guardian
from services.guardian.claim import claim
from services.guardian.instrumentation import Instrumentation
from services.guardian.learner_view import EVERYONE, LearnerView
from services.guardian.ports import GuardianPorts
from services.guardian.settings import GuardianSettings

SERVICE: Final = "guardian"
_RESTART_S: Final = 1.0
_RESTART_MOST_S: Final = 60.0
_STEADY_S: Final = 120.0
"""A Guardian that lived so long was well: what it met is not what the one before met."""
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Trouble:
    """A job whose Guardians end before their time."""

    times: int
    until: float
    """Boot-time clock, in seconds: no new Guardian before."""


class Pool:
    """``run`` until stopped; ``nudge`` for hints from outside."""

    def __init__(
        self,
        ports: GuardianPorts,
        settings: GuardianSettings,
        membership: Membership,
        instrumentation: Instrumentation,
        quarantine: Quarantine,
    ) -> None:
        self._ports, self._settings, self._membership, self._instrumentation = (
            ports,
            settings,
            membership,
            instrumentation,
        )
        self._guardians: dict[str, Guardian] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._troubles: dict[str, _Trouble] = {}
        self._nudged: set[str] = set()
        self._wake = asyncio.Event()
        self._next_sweep = 0.0
        self._strangers: frozenset[str] = frozenset()
        self.view = LearnerView(self.poke, quarantine)

    def poke(self, job_id: str, *, look: bool = False) -> None:
        """Something happened to a job, or to ``EVERYONE``; of one we do not guard the sweep takes a look."""
        for each in list(self._guardians) if job_id == EVERYONE else [job_id]:
            if each in self._guardians:
                self._guardians[each].poke(look=look)

    def nudge(self, job_id: str) -> None:
        """A hint from outside: new work, or a wish."""
        if job_id in self._guardians:
            self.poke(job_id)
        else:
            self._nudged.add(job_id)
            self._wake.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Guards until ``stopping``; then lets go of everything, as it is."""
        background = [
            asyncio.create_task(self._for_ever(self._follow_learners)),
            asyncio.create_task(self._for_ever(self._watch_cluster)),
            asyncio.create_task(self._for_ever(self._watch_members)),
        ]
        try:
            while not stopping.is_set():
                self._wake.clear()
                await self._turn()
                await self._pause(stopping)
        finally:
            tasks = [*background, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _turn(self) -> None:
        """Everything when it is time for that; else what we were told to look at."""
        try:
            if self._ports.clock.boottime() >= self._next_sweep:
                self._nudged.clear()
                self._next_sweep = self._ports.clock.boottime() + self._settings.sweep_s
                await self.sweep()
            else:
                await self._look_at_nudged()
        except WeftError as error:
            log.warning("pool.sweep_interrupted", why=str(error))

    async def _pause(self, stopping: asyncio.Event) -> None:
        """Until told something, told to stop, or the sweep's time has come."""
        waits = [asyncio.ensure_future(self._wake.wait()), asyncio.ensure_future(stopping.wait())]
        left = max(0.001, self._next_sweep - self._ports.clock.boottime())
        await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    # --- what is watched -----------------------------------------------------------

    async def _for_ever(self, watch: Callable[[], Awaitable[None]]) -> None:
        """A watch that ends would leave us blind without a word: whatever ends it, it is begun anew."""
        while True:
            try:
                await watch()
            except Exception:  # the edge of a loop that must outlive every error
                log.exception("pool.watch_failed")
            await self._ports.clock.sleep(_RESTART_S)

    async def _follow_learners(self) -> None:
        await self.view.follow(self._ports.status)

    async def _watch_cluster(self) -> None:
        async for job_id in self._ports.cluster.watch():
            self.poke(job_id or EVERYONE, look=True)

    async def _watch_members(self) -> None:
        """Another process of the pool is gone: its jobs are taken over now, not at the next sweep."""
        async with aclosing(self._ports.status.watch(member_key(SERVICE, ""))) as changes:
            async for change in changes:
                if change.kind == "delete":
                    self._next_sweep = 0.0
                    self._wake.set()

    # --- who guards what -----------------------------------------------------------

    async def sweep(self) -> None:
        """Looks at every job that holds hardware: pokes what changed, claims what nobody guards."""
        holding: set[str] = set()
        unguarded: list[Job] = []
        async for job in all_jobs(self._ports.jobs, JobQuery(holding=True, deleted=True)):
            holding.add(job.id)
            guardian = self._guardians.get(job.id)
            if guardian is None:
                unguarded.append(job)
            elif guardian.generation != job.generation or guardian.claim.nonce != job.guardian.nonce:
                guardian.poke()
        self._tidy(holding)
        # What is half provisioned or half stopped holds hardware for nothing: it goes first.
        unguarded.sort(key=lambda one: (one.attempt.committed and one.verdict is None, one.id))
        await self._take(unguarded)

    async def _look_at_nudged(self) -> None:
        nudged, self._nudged = self._nudged, set()
        found = [await self._ports.jobs.get(job_id) for job_id in sorted(nudged)]
        await self._take([job for job in found if job is not None and job.holds])

    def _tidy(self, holding: set[str]) -> None:
        """Forgets jobs that hold nothing, once two sweeps have said so: one may have been admitted meanwhile."""
        strangers = self.view.strangers(holding | set(self._guardians))
        for job_id in strangers & self._strangers:
            self.view.forget(job_id)
        self._strangers = strangers
        self._troubles = {job_id: one for job_id, one in self._troubles.items() if job_id in holding}

    async def _take(self, jobs: list[Job]) -> None:
        """Starts a Guardian for each of these that is ours, or nobody's."""
        lease = self._membership.lease
        if not jobs or lease is None or not lease.alive:
            return
        live = await members(self._ports.status, SERVICE)
        for job in jobs:
            if len(self._guardians) >= self._settings.max_guardians or not lease.alive:
                return
            trouble = self._troubles.get(job.id)
            ours = job.guardian.holder == self._membership.id
            if job.id in self._guardians or (trouble and self._ports.clock.boottime() < trouble.until):
                continue
            if ours and trouble is None:
                self._start(job)
            elif ours or job.guardian.holder not in live:
                # Ours in trouble: under a new term, in case it is the old one that somebody refuses.
                await self._claim(job, lease, live)

    async def _claim(self, job: Job, lease: Lease, live: frozenset[str]) -> None:
        try:
            taken = await claim(self._ports, job, member=self._membership.id, lease=lease, live=live)
        except Unavailable:
            raise
        except WeftError as error:  # one job's trouble is not its neighbours'
            self._trouble(job.id)
            log.warning("job.not_claimed", job=job.id, why=str(error), trace=job.trace)
            return
        if taken is not None:
            self._instrumentation.claims.labels("take-over" if job.guardian.holder else "new").inc()
            log.info("job.claimed", job=job.id, term=taken.guardian.term, previous=job.guardian.holder, trace=job.trace)
            self._start(taken)

    def _start(self, job: Job) -> None:
        guardian = Guardian(job, self._ports, self._settings, self.view, self._instrumentation)
        self._guardians[job.id] = guardian
        self._tasks[job.id] = asyncio.create_task(self._host(guardian))
        self._instrumentation.running.set(len(self._guardians))

    async def _host(self, guardian: Guardian) -> None:
        began = self._ports.clock.boottime()
        try:
            await guardian.run()
            self._troubles.pop(guardian.job_id, None)
        except StaleFence as error:
            log.info("guardian.superseded", **_named(guardian), why=str(error))
            self._trouble(guardian.job_id, began)
        except Exception:  # a fault of ours in one job's Guardian: it is started again, others go on
            self._instrumentation.crashes.inc()
            log.exception("guardian.crashed", **_named(guardian))
            self._trouble(guardian.job_id, began)
        finally:
            del self._guardians[guardian.job_id], self._tasks[guardian.job_id]
            self._instrumentation.running.set(len(self._guardians))
            self.nudge(guardian.job_id)  # it may have been admitted anew meanwhile

    def _trouble(self, job_id: str, began: float | None = None) -> None:
        """The first time costs no wait: most often the job was admitted anew while its old Guardian looked away."""
        now = self._ports.clock.boottime()
        known = self._troubles.get(job_id)
        steady = began is not None and now - began > _STEADY_S
        times = 1 if known is None or steady else known.times + 1
        wait = 0.0 if times == 1 else min(_RESTART_S * 2 ** min(times - 2, 10), _RESTART_MOST_S)
        self._troubles[job_id] = _Trouble(times, now + wait)


def _named(guardian: Guardian) -> dict[str, object]:
    """What names it in the log."""
    return {"job": guardian.job_id, "term": guardian.claim.term, "trace": guardian.trace}
