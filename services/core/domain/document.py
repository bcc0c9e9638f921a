"""From what a store gives back to a job, saying why where it cannot be read.

Every job store reads documents through here, so that they agree on what is malformed (somebody's harm to one job,
law 5) and what is merely newer (a rolling upgrade: left alone, never quarantined).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from services.core.domain.codec import load
from services.core.domain.errors import Conflict, Quarantined
from services.core.domain.job import SCHEMA, Job

MAX_NUMBER: Final = 2**31
MAX_TIME_MS: Final = 253_402_300_799_999
"""The last millisecond that RFC 3339 can write: a later time is nobody's, and would fail whoever shows it."""


def read_job(job_id: str, document: object) -> Job:
    """The job of the document stored under this id.

    Conflict where its schema is newer than ours; Quarantined where it does not fit, or says it is another job's.
    """
    if not isinstance(document, Mapping):
        raise Quarantined(f"the document of job {job_id} is a mapping, not {type(document).__name__}")
    seen: Mapping[str, Any] = document
    schema = seen.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        raise Conflict(
            f"job {job_id} was written by a newer Weft (schema {schema}, this one reads {SCHEMA}); finish the upgrade"
        )
    try:
        job = load(Job, _current_names(seen))
        if job.id != job_id:
            raise ValueError(f"it says that it is {job.id}")
        _check_numbers(job)
        _check_times(job)
    except (TypeError, ValueError, RecursionError) as error:
        tenant = seen.get("tenant")
        raise Quarantined(
            f"the document of job {job_id} cannot be read: {error}", tenant=tenant if isinstance(tenant, str) else ""
        ) from error
    return job


def _current_names(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document with the field names of this version. Older documents say ``wishes`` for ``applied_keys``."""
    if "wishes" not in document:
        return document
    renamed = {name: value for name, value in document.items() if name != "wishes"}
    return {"applied_keys": document["wishes"], **renamed}


def _check_numbers(job: Job) -> None:
    """Terms and the like rise by one: a great leap is nobody's, and would fence everybody off for good."""
    attempt, claim, counters = job.attempt.number, job.guardian.term, job.counters
    numbers = (
        attempt, claim, job.dispatcher_term, job.generation, job.observed_generation, job.history_seq, job.rev,
        counters.retries, counters.restarts, counters.preemptions, counters.rollbacks,
    )  # fmt: skip
    if min(numbers) < 0 or max(numbers) > MAX_NUMBER:
        raise ValueError("a number in it is less than nothing, or greater than counting leads to")


def _check_times(job: Job) -> None:
    times = [job.created, job.updated, job.state.since, job.not_before]
    times += [one for one in (job.finished, job.released, job.deleted) if one is not None]
    times += [one for one in (job.attempt.admitted, job.attempt.started) if one is not None]
    times += [event.time for event in job.history_tail]
    times += [job.verdict.time] if job.verdict is not None else []
    if min(times) < 0 or max(times) > MAX_TIME_MS:
        raise ValueError("it has a time before 1970 or after 9999")


def held_placement(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, str]] | None:
    """(spec, placement) of the attempt that a document holds hardware for, though as a whole it cannot be read.

    None where it says that it holds nothing, or where as much as that cannot be made out.
    """
    attempt, spec = document.get("attempt"), document.get("spec")
    if not isinstance(attempt, Mapping) or not isinstance(spec, Mapping) or document.get("released") is not None:
        return None
    seen: Mapping[str, Any] = attempt
    number, placement = seen.get("number"), seen.get("placement")
    if not isinstance(number, int) or number < 1 or not isinstance(placement, Mapping):
        return None
    return spec, {str(learner): str(node) for learner, node in placement.items()}
