"""Copies events that lie in job documents only to the history collection, so that documents stay small."""

from __future__ import annotations

import structlog

from services.core.domain.errors import Unavailable, WeftError
from services.core.ports.job_store import JobQuery, JobStore
from services.core.use_cases.jobs import copy_history

log = structlog.get_logger()


async def copy_histories(jobs: JobStore, *, limit: int) -> int:
    """How many documents were looked at. Anyone may run it, any time."""
    found = await jobs.find(JobQuery(untrimmed=True, deleted=True), newest_first=False, limit=limit)
    for job in found:
        try:
            await copy_history(jobs, job)
        except Unavailable:
            raise
        except WeftError as error:  # one document's trouble is not its neighbours'
            log.warning("history.not_copied", job=job.id, why=str(error))
    return len(found)
