"""Job documents for tests."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from services.core.domain.ids import make_id
from services.core.domain.job import Job, moved, new_job
from services.core.domain.status import Status

NOW = 1_700_000_000_000
"""Unix ms."""
_numbers = itertools.count(1)


def a_job(*, at: int = NOW, spec: dict[str, Any] | None = None, **changes: Any) -> Job:
    """Returns a new job with a unique id and idempotency key; ids rise with each call.

    ``at``: Unix ms of the submission. ``changes``: fields of the job.
    """
    number = next(_numbers)
    job_id = str(changes.pop("id", make_id("j", now_ms=at, random_bits=number)))
    job = new_job(
        job_id=job_id,
        tenant="acme",
        user="ada",
        spec={"name": "digits", "command": "python train.py"} if spec is None else spec,
        code_digest="",
        idem=f"acme/ada/{job_id}",
        idem_digest="",
        trace="",
        now=at,
    )
    return replace(job, **changes)


def at_status(job: Job, *path: Status, now: int = NOW) -> Job:
    """Returns the job after these changes of status."""
    for status in path:
        job = moved(job, status, actor="test", now=now)
    return job
