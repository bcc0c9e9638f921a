"""Many Guardians in one process, each an asyncio task. All keys of the process hang on its one lease.

A pool of one job (``guarded_job``) is the same with that job alone, in a process of its own.

A hint starts a Guardian, or its next reconcile, at once. A sweep over all jobs that hold hardware finds what hints have
missed: admitted jobs without a Guardian, jobs of dead processes, changes of the desired state. A failure of one job's
Guardian is logged, and the Guardian is started again with back-off; other jobs are not affected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import structlog

from services.core.domain.errors import StaleFence, Unavailable, WeftError
from services.core.domain.job import Job
from services.core.domain.status_keys import member_key
from services.core.ports.job_store import JobQuery
from services.core.ports.status_store import Lease
from services.core.runtime.edges import log_unexpected
from services.core.runtime.membership import Membership, members
from services.core.runtime.quarantine import Quarantine
from services.core.runtime.retry import Backoff
from services.core.runtime.timers import aligned_pause
from services.core.use_cases.jobs import all_jobs
from services.guardian.actor import Guardian
from services.guardian.claim import claim
from services.guardian.instrumentation import Instrumentation
from services.guardian.learner_view import ALL_JOBS, LearnerView
from services.guardian.ports import GuardianPorts
from services.guardian.settings import GuardianSettings

SERVICE: Final = "guardian"
_RESTART_S: Final = 1.0
_RESTART_MOST_S: Final = 60.0
_STEADY_S: Final = 120.0
"""After a Guardian that ran for so long the back-off starts again."""
log = structlog.get_logger()


@dataclass
class _Restart:
    """When the next Guardian of a job may start, after one failed. The first restart does not wait."""

    not_before_s: float
    """On the boot-time clock."""
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=_RESTART_S, most_s=_RESTART_MOST_S))


class Pool:
    """Call ``run`` once; ``nudge`` is for hints from other services."""

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
        self._restarts: dict[str, _Restart] = {}
        self._nudged: set[str] = set()
        self._wake = asyncio.Event()
        self._next_sweep_s = 0.0
        self._over = False
        """The one job of ``guarded_job`` holds nothing any more."""
        self._unknown_jobs: Mapping[str, int] = {}
        """Jobs in the view that held nothing at the last sweep, with the newest attempt that was known then."""
        self.view = LearnerView(self.request_reconcile, quarantine)

    def request_reconcile(self, job_id: str, *, cluster_changed: bool = False) -> None:
        """Starts a reconcile of a job that has a Guardian here, or of ``ALL_JOBS``. The sweep finds other jobs."""
        for guarded_id in list(self._guardians) if job_id == ALL_JOBS else [job_id]:
            if guarded_id in self._guardians:
                self._guardians[guarded_id].request_reconcile(cluster_changed=cluster_changed)

    def nudge(self, job_id: str) -> None:
        """A hint: the job was admitted, or its desired state has changed."""
        if not self._guards(job_id):
            return
        if job_id in self._guardians:
            self.request_reconcile(job_id)
        else:
            self._nudged.add(job_id)
            self._wake.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Runs Guardians until ``stopping`` is set; then cancels them and leaves their jobs as they are.

        A pool of one job also returns when that job holds nothing.
        """
        background = [
            asyncio.create_task(self._repeat(self._follow_learners)),
            asyncio.create_task(self._repeat(self._watch_cluster)),
            asyncio.create_task(self._repeat(self._watch_members)),
        ]
        try:
            while not stopping.is_set() and not self._over:
                self._wake.clear()
                await self._sweep_or_start_nudged()
                await self._pause(stopping)
        finally:
            tasks = [*background, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _sweep_or_start_nudged(self) -> None:
        """Sweeps if it is time; else starts Guardians for nudged jobs only."""
        try:
            if self._ports.clock.boottime() >= self._next_sweep_s:
                self._nudged.clear()
                self._next_sweep_s = self._ports.clock.boottime() + aligned_pause(self._settings.sweep_s)
                await self.sweep()
            else:
                await self._start_nudged()
        except WeftError as error:
            log.warning("pool.sweep_interrupted", why=str(error))

    async def _pause(self, stopping: asyncio.Event) -> None:
        """Returns after a nudge, when ``stopping`` is set, or at the next sweep."""
        waits = [asyncio.ensure_future(self._wake.wait()), asyncio.ensure_future(stopping.wait())]
        left_s = max(0.001, self._next_sweep_s - self._ports.clock.boottime())
        await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    # --- watches -------------------------------------------------------------------

    async def _repeat(self, watch: Callable[[], Awaitable[None]]) -> None:
        """Runs a watch again whenever it ends, until cancelled: without it the pool would miss all its events."""
        while True:
            with log_unexpected("pool.watch_failed"):
                await watch()
            await self._ports.clock.sleep(_RESTART_S)

    async def _follow_learners(self) -> None:
        await self.view.follow(self._ports.status, self._settings.guarded_job)

    async def _watch_cluster(self) -> None:
        async for job_id in self._ports.cluster.watch():
            self.request_reconcile(job_id or ALL_JOBS, cluster_changed=True)

    async def _watch_members(self) -> None:
        """Sweeps at once when another guardian process is gone: its jobs are taken over now."""
        async with aclosing(self._ports.status.watch(member_key(SERVICE, ""))) as changes:
            async for change in changes:
                if change.kind == "delete":
                    self._next_sweep_s = 0.0
                    self._wake.set()

    # --- which process guards which job ----------------------------------------------

    async def sweep(self) -> None:
        """Reads every job that holds hardware: reconciles what changed, claims jobs without a Guardian."""
        holding: set[str] = set()
        unguarded: list[Job] = []
        async for job in self._holding():
            holding.add(job.id)
            guardian = self._guardians.get(job.id)
            if guardian is None:
                unguarded.append(job)
            elif guardian.generation != job.generation or guardian.claim.nonce != job.guardian.nonce:
                guardian.request_reconcile()
        self._forget_released(holding)
        self._over = bool(self._settings.guarded_job) and not holding and not self._guardians
        # Jobs that are partly provisioned or partly stopped hold hardware without using it: they go first.
        unguarded.sort(key=lambda job: (job.attempt.committed and job.verdict is None, job.id))
        await self._take_over(unguarded)

    def _guards(self, job_id: str) -> bool:
        """True unless this is the pool of another job."""
        return self._settings.guarded_job in {"", job_id}

    async def _holding(self) -> AsyncIterator[Job]:
        """The jobs of this pool that hold hardware."""
        if not self._settings.guarded_job:
            async for job in all_jobs(self._ports.jobs, JobQuery(holding=True, deleted=True)):
                yield job
            return
        own = await self._ports.jobs.get(self._settings.guarded_job)
        if own is not None and own.holds:
            yield own

    async def _start_nudged(self) -> None:
        nudged, self._nudged = self._nudged, set()
        jobs = [await self._ports.jobs.get(job_id) for job_id in sorted(nudged)]
        await self._take_over([job for job in jobs if job is not None and job.holds])

    def _forget_released(self, holding: set[str]) -> None:
        """Forgets jobs that held nothing in two sweeps: after one, a job may just have been admitted."""
        unknown = self.view.known_beyond(holding | set(self._guardians))
        for job_id in unknown.keys() & self._unknown_jobs.keys():
            self.view.forget(job_id, through=self._unknown_jobs[job_id])
        self._unknown_jobs = unknown
        self._restarts = {job_id: restart for job_id, restart in self._restarts.items() if job_id in holding}

    async def _take_over(self, jobs: list[Job]) -> None:
        """Starts a Guardian for each of these jobs that this process, or no live process, has claimed."""
        lease = self._membership.lease
        if not jobs or lease is None or not lease.alive:
            return
        live = await members(self._ports.status, SERVICE)
        for job in jobs:
            if len(self._guardians) >= self._settings.max_guardians or not lease.alive:
                return
            restart = self._restarts.get(job.id)
            ours = job.guardian.holder == self._membership.id
            if job.id in self._guardians or (restart and self._ports.clock.boottime() < restart.not_before_s):
                continue
            if ours and restart is None:
                self._start(job)
            elif ours or job.guardian.holder not in live:
                # Our own after a failure: under a new term, in case the old one is refused.
                await self._claim(job, lease, live)

    async def _claim(self, job: Job, lease: Lease, live: frozenset[str]) -> None:
        try:
            claimed = await claim(self._ports, job, member=self._membership.id, lease=lease, live=live)
        except Unavailable:
            raise
        except WeftError as error:  # one bad job must not stop the others
            self._delay_restart(job.id)
            log.warning("job.not_claimed", job=job.id, why=str(error), trace=job.trace)
            return
        if claimed is not None:
            self._instrumentation.claims.labels("take-over" if job.guardian.holder else "new").inc()
            log.info(
                "job.claimed", job=job.id, term=claimed.guardian.term, previous=job.guardian.holder, trace=job.trace
            )
            self._start(claimed)

    def _start(self, job: Job) -> None:
        guardian = Guardian(job, self._ports, self._settings, self.view, self._instrumentation)
        self._guardians[job.id] = guardian
        self._tasks[job.id] = asyncio.create_task(self._host(guardian))
        self._instrumentation.running.set(len(self._guardians))

    async def _host(self, guardian: Guardian) -> None:
        began_s = self._ports.clock.boottime()
        try:  # a bug ends one job's Guardian: it is started again, others go on
            with log_unexpected("guardian.crashed", expected=StaleFence, **_log_fields(guardian)) as edge:
                await guardian.run()
                self._restarts.pop(guardian.job_id, None)
            if edge.failed:
                self._instrumentation.crashes.inc()
                self._delay_restart(guardian.job_id, began_s)
        except StaleFence as error:
            log.info("guardian.superseded", **_log_fields(guardian), why=str(error))
            self._delay_restart(guardian.job_id, began_s)
        finally:
            del self._guardians[guardian.job_id], self._tasks[guardian.job_id]
            self._instrumentation.running.set(len(self._guardians))
            self.nudge(guardian.job_id)  # it may have been admitted again in the meantime

    def _delay_restart(self, job_id: str, began_s: float | None = None) -> None:
        """Sets the back-off before the job's next Guardian. ``began_s``: when the one that failed started.

        The first restart does not wait: mostly the job was admitted again while its former Guardian was ending.
        """
        now_s = self._ports.clock.boottime()
        restart = self._restarts.get(job_id)
        steady = began_s is not None and now_s - began_s > _STEADY_S
        if restart is None or steady:
            self._restarts[job_id] = _Restart(now_s)
        else:
            restart.not_before_s = now_s + restart.backoff.next()


def _log_fields(guardian: Guardian) -> dict[str, object]:
    return {"job": guardian.job_id, "term": guardian.claim.term, "trace": guardian.trace}
