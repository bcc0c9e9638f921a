"""Reads stored job documents and checks them.

Every job store uses these functions, so all agree on which documents are malformed (they are quarantined, law 5) and
which have a newer schema (they are left alone during a rolling upgrade, never quarantined).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from services.core.domain.codec import MALFORMED, load
from services.core.domain.errors import Conflict, Quarantined
from services.core.domain.job import SCHEMA, Job

MAX_NUMBER: Final = 2**31
"""The greatest plausible term, attempt, revision or counter: they rise by one."""
MAX_TIME_MS: Final = 253_402_300_799_999
"""The last millisecond that RFC 3339 can express (year 9999), as Unix time. Formatting a later time fails."""


def read_job(job_id: str, document: object) -> Job:
    """Returns the job of a document that was stored under ``job_id``.

    Raises Conflict for a newer schema. Raises Quarantined for a document that is malformed, has implausible numbers or
    times, or names another job.
    """
    if not isinstance(document, Mapping):
        raise Quarantined(f"the document of job {job_id} is a {type(document).__name__}, not a mapping")
    fields: Mapping[str, Any] = document
    schema = fields.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        raise Conflict(
            f"job {job_id} was written by a newer Weft (schema {schema}, this one reads {SCHEMA}); finish the upgrade"
        )
    try:
        job = load(Job, _current_names(fields))
        if job.id != job_id:
            raise ValueError(f"it is the document of job {job.id}")
        _check_numbers(job)
        _check_times(job)
    except MALFORMED as error:
        tenant = fields.get("tenant")
        raise Quarantined(
            f"the document of job {job_id} cannot be read: {error}", tenant=tenant if isinstance(tenant, str) else ""
        ) from error
    return job


def _current_names(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the document with the field names of this version: older documents call ``applied_keys`` ``wishes``."""
    if "wishes" not in document:
        return document
    renamed = {name: value for name, value in document.items() if name != "wishes"}
    return {"applied_keys": document["wishes"], **renamed}


def _check_numbers(job: Job) -> None:
    """Checks terms and counters. They rise by one, so a huge value is damage, and as a fence it would refuse all."""
    attempt, claim, counters = job.attempt.number, job.guardian.term, job.counters
    numbers = (
        attempt,
        claim,
        job.dispatcher_term,
        job.generation,
        job.observed_generation,
        job.history_seq,
        job.rev,
        counters.retries,
        counters.restarts,
        counters.preemptions,
        counters.rollbacks,
    )
    if min(numbers) < 0 or max(numbers) > MAX_NUMBER:
        raise ValueError("it has a number that is negative or implausibly large")


def _check_times(job: Job) -> None:
    times = [job.created, job.updated, job.state.since, job.not_before]
    attempt = job.attempt
    optional_times = (
        job.finished,
        job.released,
        job.deleted,
        job.erased,
        attempt.queued,
        attempt.admitted,
        attempt.started,
        *(time for span in attempt.startup.values() for time in (span.began, span.ended)),
    )
    times += [time for time in optional_times if time is not None]
    times += [time for period in job.held_before for time in (period.began, period.ended, period.held)]
    times += [event.time for event in job.history_tail]
    times += [job.verdict.time] if job.verdict is not None else []
    if min(times) < 0 or max(times) > MAX_TIME_MS:
        raise ValueError("it has a time before 1970 or after 9999")


def held_placement(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, str]] | None:
    """Returns (spec, placement: learner -> node) of the attempt for which an unreadable document holds hardware.

    None where the document says that it holds nothing, or where these fields cannot be read either.
    """
    attempt, spec = document.get("attempt"), document.get("spec")
    if not isinstance(attempt, Mapping) or not isinstance(spec, Mapping) or document.get("released") is not None:
        return None
    fields: Mapping[str, Any] = attempt
    number, placement = fields.get("number"), fields.get("placement")
    if not isinstance(number, int) or number < 1 or not isinstance(placement, Mapping):
        return None
    return spec, {str(learner): str(node) for learner, node in placement.items()}
