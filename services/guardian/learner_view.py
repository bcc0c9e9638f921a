"""What etcd says of all jobs, kept up by one watch for the whole process: learners' reports, and the current attempt.

Only the newest report of each learner is kept, so a watch that lists again, or an old report that arrives late, changes
nothing that is known; and what a learner has said remains said when etcd forgets everything. The announcement of the
attempt is etcd's own: forgotten there is forgotten here, and the Guardian is told, to announce it again.

A malformed value harms its own job only: it is in quarantine until it is written anew or removed, and passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from services.core.domain.codec import load
from services.core.domain.document import MAX_TIME_MS
from services.core.domain.learner import LearnerStatus
from services.core.ports.status_store import Change, StatusStore
from services.core.runtime.quarantine import STATUS, Quarantine

JOBS: Final = "/jobs/"
EVERYONE: Final = ""
MALFORMED: Final = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""What reading a text that is none of ours may raise."""
_SCHEMA: Final = 1
_MOST_ATTEMPTS: Final = 2**31


@dataclass
class _Known:
    learners: dict[str, LearnerStatus] = field(default_factory=dict)
    announced: int = 0


class LearnerView:
    def __init__(self, poke: Callable[[str], None], quarantine: Quarantine) -> None:
        """``poke`` is called with the id of each job something changed of; with ``EVERYONE`` when all may have."""
        self._poke, self._quarantine = poke, quarantine
        self._jobs: dict[str, _Known] = {}

    def of(self, job_id: str, attempt: int) -> Mapping[str, LearnerStatus]:
        """The learners of that attempt, by name."""
        known = self._jobs.get(job_id, _Known())
        return {name: one for name, one in known.learners.items() if one.attempt == attempt}

    def announced(self, job_id: str) -> int:
        """The attempt that etcd says is current; 0: it says nothing."""
        return self._jobs.get(job_id, _Known()).announced

    def forget(self, job_id: str) -> None:
        """The job is released: nothing of it is asked for any more."""
        self._jobs.pop(job_id, None)

    def strangers(self, holding: Collection[str]) -> frozenset[str]:
        """Jobs that are known here and are not among these."""
        return frozenset(self._jobs) - frozenset(holding)

    async def follow(self, status: StatusStore) -> None:
        """Runs for ever."""
        async with aclosing(status.watch(JOBS)) as changes:
            async for change in changes:
                self.apply(change)

    def apply(self, change: Change) -> None:
        """One step of the watch."""
        if change.kind == "reset":
            for known in self._jobs.values():
                known.announced = 0
            self._quarantine.keep_only(STATUS, ())
            self._poke(EVERYONE)
            return
        job_id, _, rest = change.key.removeprefix(JOBS).partition("/")
        kind, _, name = rest.partition("/")
        try:
            if kind == "learners" and change.entry is not None:
                self._hear(job_id, name, change.entry.value)
            elif kind == "attempt":
                self._hear_attempt(job_id, change.entry.value if change.entry is not None else None)
        except MALFORMED as error:
            self._quarantine.hold(STATUS, change.key, str(error) or type(error).__name__, job=job_id)
        else:
            self._quarantine.release(STATUS, change.key)

    def _hear_attempt(self, job_id: str, value: str | None) -> None:
        known = self._jobs.setdefault(job_id, _Known())
        known.announced = 0
        self._poke(job_id)
        if value is not None:
            known.announced = _number(value)

    def _hear(self, job_id: str, name: str, value: str) -> None:
        document = json.loads(value)
        if isinstance(document, dict) and _newer(document.get("schema")):
            return  # a newer helper's, during an upgrade: the cluster's own word has to do
        one = load(LearnerStatus, document)
        if one.name != name:
            raise ValueError(f"it says that it is {one.name}")
        if any(not 0 <= time <= MAX_TIME_MS for time in one.times.values()) or (
            one.exit and not 0 <= one.exit.time <= MAX_TIME_MS
        ):
            raise ValueError("it has a time before 1970 or after 9999")
        learners = self._jobs.setdefault(job_id, _Known()).learners
        known = learners.get(name)
        if known is None or (one.attempt, one.seq) > (known.attempt, known.seq):
            learners[name] = one
            self._poke(job_id)


def announced_attempt(value: str) -> int:
    """The number in the value of ``/jobs/<id>/attempt``; 0 for a text that is none of ours."""
    try:
        return _number(value)
    except MALFORMED:
        return 0


def _number(value: str) -> int:
    number = json.loads(value)["attempt"]
    if not isinstance(number, int) or not 0 < number <= _MOST_ATTEMPTS:
        raise ValueError("it names no attempt")
    return number


def _newer(schema: object) -> bool:
    return isinstance(schema, int) and schema > _SCHEMA
