"""Copies events that are only in job documents to the history collection, so that documents stay small."""

from __future__ import annotations

import structlog

from services.core.domain.errors import Unavailable, WeftError
from services.core.ports.job_store import JobQuery, JobStore
from services.core.use_cases.jobs import copy_history

log = structlog.get_logger()


async def copy_histories(jobs: JobStore, *, limit: int) -> int:
    """Copies the events of at most ``limit`` jobs. Returns how many documents it read.

    Any process may run it at any time. Raises Unavailable.
    """
    page = await jobs.find(JobQuery(untrimmed=True, deleted=True), newest_first=False, limit=limit)
    for job in page:
        try:
            await copy_history(jobs, job)
        except Unavailable:
            raise
        except WeftError as error:  # one bad document must not stop the others
            log.warning("history.not_copied", job=job.id, why=str(error))
    return len(page)
