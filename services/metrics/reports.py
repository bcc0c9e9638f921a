"""A learner's report on its way to ``/jobs/<id>/learners/<name>``: only the newest, and only of the current attempt.

The write compares three things at once: nobody changed the key since it was read, what it held was older by
(attempt, seq), and ``/jobs/<id>/attempt`` still says what it said. So a report that was held up anywhere, for however
long, cannot overwrite a newer one or speak for a newer attempt.
"""

from __future__ import annotations

import json
from typing import Final

import structlog

from services.core.domain.codec import dump
from services.core.domain.errors import InvalidRequest, PermissionDenied, Unavailable
from services.core.domain.learner import LearnerStatus
from services.core.domain.tokens import LearnerIdentity
from services.core.ports.status_store import MAX_VALUE, StatusStore
from services.metrics.attempts import Attempts, attempt_key, learner_key, read_status

WRITTEN, UNCHANGED, STALE = "written", "unchanged", "stale"
_TRIES: Final = 5
_MESSAGE: Final = 2_000
"""Characters of a report's message that are kept: the value must stay small, and a traceback's end says most."""
log = structlog.get_logger()


def status_of(learner: LearnerIdentity, text: bytes) -> LearnerStatus:
    """The reported status. InvalidRequest where it is none; PermissionDenied where it is another learner's."""
    if len(text) > MAX_VALUE:
        raise InvalidRequest(f"a report has at most {MAX_VALUE} bytes")
    status = read_status(text)
    if status is None:
        raise InvalidRequest("this report is not the status of a learner")
    mine = (learner.name, learner.role, learner.rank, learner.attempt)
    if (status.name, status.role, status.rank, status.attempt) != mine:
        raise PermissionDenied(f"{learner.name} of attempt {learner.attempt} reports for itself only")
    return status


class Reports:
    def __init__(self, status: StatusStore, attempts: Attempts) -> None:
        self._status, self._attempts = status, attempts

    async def write(self, learner: LearnerIdentity, status: LearnerStatus) -> str:
        """WRITTEN, UNCHANGED (this or a newer one is there), or STALE (another attempt is current).

        Unavailable where etcd is, or does not know the current attempt.
        """
        if self._attempts.has(learner, status.seq):
            return UNCHANGED
        key = learner_key(learner.job, learner.name)
        value = json.dumps(dump(status) | {"message": status.message[-_MESSAGE:]}, separators=(",", ":"))
        for _ in range(_TRIES):
            age = self._attempts.age
            attempt = await self._attempts.current(learner)
            if attempt.number != learner.attempt:
                return STALE
            entry = await self._status.get(key)
            there = read_status(entry.value) if entry is not None else None
            if entry is not None and there is not None and (there.attempt, there.seq) >= (status.attempt, status.seq):
                self._attempts.note(learner.job, there, entry.mod_revision, age=age)
                return UNCHANGED
            revision = await self._status.put_while(
                key,
                value,
                guard_key=attempt_key(learner.job),
                guard_value=attempt.text,
                mod_revision=entry.mod_revision if entry is not None else 0,
            )
            if revision is not None:
                self._attempts.note(learner.job, status, revision, age=age)
                return WRITTEN
        raise Unavailable(f"the status of {learner.name} kept changing; try again", retry_after_s=0.1)
