"""Removes what jobs that are over have left behind: keys in etcd, learners in the cluster.

A Guardian leaves nothing; this is for what died between two lines, and for late effects that came after it. It acts
only for the dispatcher that leads, on what two looks in a row have shown, and after the job's own document, read
linearizably, has said that it holds nothing, or is not there at all. A document that cannot be read protects its job.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import structlog

from services.core.domain.errors import StaleFence, Unavailable, WeftError
from services.core.domain.job import Job
from services.core.ports.cluster import Cluster
from services.core.ports.job_store import JobQuery, JobStore
from services.core.ports.status_store import StatusStore
from services.core.use_cases.jobs import all_jobs
from services.lcm.instrumentation import Instrumentation

JOBS: Final = "/jobs/"
_BEYOND: Final = 2**53
"""A term that no Guardian will ever have: for jobs whose document is gone for good."""
log = structlog.get_logger()


class Collector:
    def __init__(self, jobs: JobStore, status: StatusStore, cluster: Cluster, instrumentation: Instrumentation) -> None:
        self._jobs, self._status, self._cluster, self._instrumentation = jobs, status, cluster, instrumentation
        self._suspects: dict[str, frozenset[str]] = {}

    async def collect(self, term: int) -> int:
        """One look, on behalf of the dispatcher of this term; how many leftovers were removed."""
        keys = {entry.key.removeprefix(JOBS).partition("/")[0] for entry in await self._status.list(JOBS)}
        here = await self._cluster.jobs()
        # Read after the other two: who began before them is known to it.
        holding = {job.id async for job in all_jobs(self._jobs, JobQuery(holding=True, deleted=True))}
        if (await self._jobs.dispatcher()).term != term:
            raise StaleFence("a newer dispatcher leads")
        removed = 0
        for where, found in (("status", keys), ("cluster", here)):
            for job_id in self._twice(where, found, holding):
                removed += await self._remove(where, job_id)
        return removed

    def _twice(self, where: str, found: Collection[str], holding: Collection[str]) -> list[str]:
        suspects = frozenset(found) - frozenset(holding)
        before, self._suspects[where] = self._suspects.get(where, frozenset()), suspects
        return sorted(suspects & before)

    async def _remove(self, where: str, job_id: str) -> bool:
        try:
            job = await self._jobs.get(job_id)
            if job is not None and job.holds:
                return False
            if where == "status":
                await self._status.delete_prefix(f"{JOBS}{job_id}/")
                await self._status.delete(f"{JOBS}{job_id}")  # nobody of ours writes one, and so nobody removes it
            else:
                await self._tear_down(job_id, job)
        except Unavailable:
            raise
        except WeftError as error:  # one job's trouble is not its neighbours'
            log.warning("leftover.not_removed", where=where, job=job_id, why=str(error))
            return False
        self._instrumentation.collected.labels(where).inc()
        log.warning("leftover.removed", where=where, job=job_id, known=job is not None)
        return True

    async def _tear_down(self, job_id: str, job: Job | None) -> None:
        if job is not None:
            await self._cluster.teardown(job_id, attempt=job.attempt.number, term=job.guardian.term)
            return
        attempts = (await self._cluster.observe(job_id)).attempts
        await self._cluster.teardown(job_id, attempt=max(attempts, default=1), term=_BEYOND)
