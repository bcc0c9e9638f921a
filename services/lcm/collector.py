"""Removes what released jobs have left behind: keys in etcd, learners in the cluster.

A Guardian leaves nothing behind. Leftovers come from processes that died between two steps, and from calls that took
effect late. The collector acts only for the dispatcher that leads, on leftovers seen in two collections in a row, and
after a linearizable read of the job's own document has shown that the job holds nothing or does not exist. A document
that cannot be read protects its job.

A pod that does not end, e.g. on a node that hangs, makes the removal of its job fail after minutes. It stops no other
job: a collection ends after a few such failures in a row, and the next one begins after the last job that was tried.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import structlog

from services.core.domain.errors import StaleFence, Unavailable, WeftError
from services.core.domain.job import Job
from services.core.domain.status_keys import JOBS, job_prefix, parse_job_key
from services.core.ports.cluster import Cluster
from services.core.ports.job_store import JobQuery, JobStore
from services.core.ports.status_store import StatusStore
from services.core.use_cases.jobs import all_jobs
from services.lcm.instrumentation import Instrumentation
from services.lcm.turn import Turn

_HIGHEST_TERM: Final = 2**53
"""Higher than the term of any Guardian: for learners of jobs that have no document."""
log = structlog.get_logger()


class Collector:
    def __init__(self, jobs: JobStore, status: StatusStore, cluster: Cluster, instrumentation: Instrumentation) -> None:
        self._jobs, self._status, self._cluster, self._instrumentation = jobs, status, cluster, instrumentation
        self._suspects: dict[str, frozenset[str]] = {}
        self._tried: dict[str, str] = {}
        """Place -> the job with which its last collection ended early; empty if it tried all jobs."""

    async def collect(self, term: int) -> int:
        """Removes the leftovers that the last collection has seen, too. Returns how many jobs' leftovers were removed.

        Raises StaleFence if the dispatcher of this term does not lead any more, Unavailable if a store is away, or if
        the removal of some jobs in a row fails for that reason.
        """
        with_keys = {parse_job_key(entry.key).job_id for entry in await self._status.list(JOBS)}
        on_cluster = await self._cluster.jobs(cached=True)
        # Read after the other two: it contains every job that began before they were read.
        holding = {job.id async for job in all_jobs(self._jobs, JobQuery(holding=True, deleted=True))}
        if (await self._jobs.dispatcher()).term != term:
            raise StaleFence("a newer dispatcher leads")
        removed = 0
        for place, job_ids in (("status", with_keys), ("cluster", on_cluster)):
            removed += await self._remove_all(place, self._seen_twice(place, job_ids, holding))
        return removed

    async def _remove_all(self, place: str, job_ids: Sequence[str]) -> int:
        """Returns how many jobs' leftovers were removed. Raises Unavailable after a few failures in a row."""
        removed, turn, last = 0, Turn(), self._tried.get(place, "")
        for job_id in sorted(job_ids, key=lambda job_id: (job_id <= last, job_id)):
            try:
                removed += await self._remove(place, job_id)
            except Unavailable as error:
                log.warning("leftover.not_removed", where=place, job=job_id, why=str(error))
                self._tried[place] = job_id
                turn.failed(error)
            else:
                turn.succeeded()
        self._tried.pop(place, None)
        return removed

    def _seen_twice(self, place: str, job_ids: Collection[str], holding: Collection[str]) -> list[str]:
        """The jobs that hold nothing and were here in the last collection already."""
        suspects = frozenset(job_ids) - frozenset(holding)
        before, self._suspects[place] = self._suspects.get(place, frozenset()), suspects
        return sorted(suspects & before)

    async def _remove(self, place: str, job_id: str) -> bool:
        try:
            job = await self._jobs.get(job_id)
            if job is not None and job.holds:
                return False
            if place == "status":
                await self._status.delete_prefix(job_prefix(job_id))
                await self._status.delete(f"{JOBS}{job_id}")  # written by no service, so removed by no other code
            elif not await self._tear_down(job_id, job):
                return False
        except Unavailable:
            raise
        except WeftError as error:  # one bad job must not stop the others
            log.warning("leftover.not_removed", where=place, job=job_id, why=str(error))
            return False
        self._instrumentation.collected.labels(place).inc()
        log.warning("leftover.removed", where=place, job=job_id, known=job is not None)
        return True

    async def _tear_down(self, job_id: str, job: Job | None) -> bool:
        """Returns False if nothing of the job exists: what the cluster has reported may be older."""
        attempts = (await self._cluster.observe(job_id)).attempts
        if not attempts:
            return False
        number, term = (job.attempt.number, job.guardian.term) if job is not None else (max(attempts), _HIGHEST_TERM)
        await self._cluster.teardown(job_id, attempt=number, term=term)
        return True
