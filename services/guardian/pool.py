"""Many Guardians in one process, each an asyncio task; all keys of the process hang on its one lease.

A hint makes a Guardian start or look at once; a sweep over all jobs that hold hardware finds whatever a hint missed:
admitted jobs without a Guardian, jobs of dead processes, wishes nobody told us of. One Guardian's trouble is its own.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
from prometheus_client import Counter, Gauge

from services.core.domain.errors import NotFound, StaleFence, WeftError
from services.core.domain.job import Job
from services.core.members import Membership, members
from services.core.ports.job_store import JobQuery
from services.guardian.actor import Guardian
from services.guardian.claim import claim
from services.guardian.ports import GuardianPorts
from services.guardian.settings import GuardianSettings
from services.guardian.view import LearnerView

_RESTART_S: Final = 1.0
log = structlog.get_logger()
_running = Gauge("guardian_running", "Guardians hosted by this process")
_claims = Counter("guardian_claims_total", "Jobs claimed", ["kind"])
_crashes = Counter("guardian_crashes_total", "Guardians that ended by an error of ours; each is started again")


class Pool:
    def __init__(self, ports: GuardianPorts, settings: GuardianSettings, membership: Membership) -> None:
        self._ports, self._settings, self._membership = ports, settings, membership
        self._guardians: dict[str, Guardian] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self.view = LearnerView(self.poke)

    def poke(self, job_id: str, *, look: bool = False) -> None:
        """Something happened to a job; of one we do not guard the sweep takes a look."""
        guardian = self._guardians.get(job_id)
        if guardian is not None:
            guardian.poke(look=look)

    def nudge(self, job_id: str) -> None:
        """A hint from outside: new work, or a wish."""
        if job_id in self._guardians:
            self.poke(job_id)
        else:
            self._wake.set()

    async def run(self, stopping: asyncio.Event) -> None:
        background = [
            asyncio.create_task(self.view.follow(self._ports.status)),
            asyncio.create_task(self._watch_cluster()),
        ]
        try:
            while not stopping.is_set():
                self._wake.clear()
                try:
                    await self.sweep()
                except WeftError as error:
                    log.warning("pool.sweep_interrupted", why=str(error))
                await self._pause(stopping)
        finally:
            for task in (*background, *self._tasks.values()):
                task.cancel()
            await asyncio.gather(*background, *self._tasks.values(), return_exceptions=True)

    async def _pause(self, stopping: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(self._wake.wait()), asyncio.ensure_future(stopping.wait())]
        await asyncio.wait(waits, timeout=self._settings.sweep_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _watch_cluster(self) -> None:
        async for job_id in self._ports.cluster.watch():
            for each in [job_id] if job_id else list(self._guardians):
                self.poke(each, look=True)

    async def sweep(self) -> None:
        """Looks at every job that holds hardware: claims what nobody guards, pokes what changed."""
        lease = self._membership.lease
        live = await members(self._ports.status, "guardian")
        unguarded: list[Job] = []
        after: str | None = None
        while page := await self._ports.jobs.find(
            JobQuery(holding=True, deleted=True, after=after), newest_first=False, limit=1000
        ):
            for job in page:
                guardian = self._guardians.get(job.id)
                if guardian is None:
                    unguarded.append(job)
                elif guardian.generation != job.generation or guardian.claim.nonce != job.guardian.nonce:
                    guardian.poke()
            after = page[-1].id
            if len(page) < 1000:
                break
        if lease is None or not lease.alive:
            return
        # What is half provisioned or half stopped holds hardware for nothing: it goes first.
        for job in sorted(unguarded, key=lambda one: (one.attempt.committed and one.verdict is None, one.id)):
            if len(self._guardians) >= self._settings.max_guardians:
                break
            if job.guardian.holder == self._membership.id:
                self._start(job)
            elif job.guardian.holder not in live:
                taken = await claim(self._ports, job, member=self._membership.id, lease=lease, live=live)
                if taken is not None:
                    _claims.labels(kind="take-over" if job.guardian.holder else "new").inc()
                    log.info("job.claimed", job=job.id, term=taken.guardian.term, previous=job.guardian.holder)
                    self._start(taken)

    def _start(self, job: Job) -> None:
        guardian = Guardian(job, self._ports, self._settings, self.view)
        self._guardians[job.id] = guardian
        self._tasks[job.id] = asyncio.create_task(self._host(guardian))
        _running.set(len(self._guardians))

    async def _host(self, guardian: Guardian) -> None:
        try:
            await guardian.run()
        except StaleFence as error:
            log.info("guardian.superseded", job=guardian.job_id, why=str(error))
        except NotFound:
            log.warning("guardian.job_gone", job=guardian.job_id)
        except Exception:  # a fault of ours in one job's Guardian: it is started again by the sweep, others go on
            _crashes.inc()
            log.exception("guardian.crashed", job=guardian.job_id)
            await self._ports.clock.sleep(_RESTART_S)
        finally:
            self._guardians.pop(guardian.job_id, None)
            self._tasks.pop(guardian.job_id, None)
            _running.set(len(self._guardians))
            self._wake.set()  # the job may have been admitted anew meanwhile
