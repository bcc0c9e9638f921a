"""From what a store gives back to a job, saying why where it cannot be read.

Every job store reads documents through here, so that they agree on what is malformed (somebody's harm to one job,
law 5) and what is merely newer (a rolling upgrade: left alone, never quarantined).
"""

from __future__ import annotations

from collections.abc import Mapping

from services.core.domain.codec import load
from services.core.domain.errors import Conflict, Internal
from services.core.domain.job import SCHEMA, Job


def read_job(job_id: str, document: object) -> Job:
    """The job of the document stored under this id.

    Conflict where its schema is newer than ours; Internal where it does not fit, or says it is another job's.
    """
    if not isinstance(document, Mapping):
        raise Internal(f"the document of job {job_id} is a mapping, not {type(document).__name__}")
    schema = document.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        raise Conflict(
            f"job {job_id} was written by a newer Weft (schema {schema}, this one reads {SCHEMA}); finish the upgrade"
        )
    try:
        job = load(Job, document)
    except (TypeError, ValueError) as error:
        raise Internal(f"the document of job {job_id} cannot be read: {error}") from error
    if job.id != job_id:
        raise Internal(f"the document of job {job_id} says that it is {job.id}")
    return job
