"""Writes a learner's report to ``/jobs/<id>/learners/<name>``: only the newest, and only of the current attempt.

A write is conditional: the key is unchanged since it was read, its value was older by (attempt, run, seq), and
``/jobs/<id>/attempt`` is unchanged. So a delayed report never overwrites a newer one, nor one of a newer attempt.
"""

from __future__ import annotations

import json
from typing import Final

import structlog

from services.core.domain.codec import dump
from services.core.domain.errors import InvalidRequest, PermissionDenied, Unavailable
from services.core.domain.learner import LearnerStatus
from services.core.domain.status_keys import attempt_key, learner_key
from services.core.domain.tokens import LearnerIdentity
from services.core.ports.status_store import MAX_VALUE, StatusStore
from services.metrics.attempts import Attempts, read_status

WRITTEN, UNCHANGED, STALE = "written", "unchanged", "stale"
_TRIES: Final = 5
_MESSAGE: Final = 2_000
"""Characters of a report's message that are kept, from its end: a traceback's last lines name the error."""
log = structlog.get_logger()


def status_of(learner: LearnerIdentity, text: bytes) -> LearnerStatus:
    """Parses a report. Raises InvalidRequest if it is malformed, PermissionDenied if it is another learner's."""
    if len(text) > MAX_VALUE:
        raise InvalidRequest(f"a report has at most {MAX_VALUE} bytes")
    status = read_status(text)
    if status is None:
        raise InvalidRequest("this report is not a learner's status")
    identity = (learner.name, learner.role, learner.rank, learner.attempt)
    if (status.name, status.role, status.rank, status.attempt) != identity:
        raise PermissionDenied(f"{learner.name} of attempt {learner.attempt} may report for itself only")
    return status


class Reports:
    def __init__(self, status: StatusStore, attempts: Attempts) -> None:
        self._status, self._attempts = status, attempts

    async def write(self, learner: LearnerIdentity, status: LearnerStatus) -> str:
        """Returns WRITTEN, UNCHANGED (this or a newer report is stored), or STALE (another attempt is current).

        Raises Unavailable if etcd does not answer, or has no current attempt of the job.
        """
        if self._attempts.is_reported(learner, status):
            return UNCHANGED
        key = learner_key(learner.job, learner.name)
        value = json.dumps(dump(status) | {"message": status.message[-_MESSAGE:]}, separators=(",", ":"))
        for _ in range(_TRIES):
            age = self._attempts.age
            attempt = await self._attempts.current(learner)
            if attempt.number != learner.attempt:
                return STALE
            entry = await self._status.get(key)
            stored = read_status(entry.value) if entry is not None else None
            if entry is not None and stored is not None and stored.order >= status.order:
                self._attempts.record(learner.job, stored, entry.mod_revision, age=age)
                return UNCHANGED
            revision = await self._status.put_while(
                key,
                value,
                guard_key=attempt_key(learner.job),
                guard_value=attempt.text,
                mod_revision=entry.mod_revision if entry is not None else 0,
            )
            if revision is not None:
                self._attempts.record(learner.job, status, revision, age=age)
                return WRITTEN
        raise Unavailable(f"the status of {learner.name} kept changing; try again", retry_after_s=0.1)
