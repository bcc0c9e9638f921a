"""What etcd says of all jobs, kept up by one watch for the whole process: learners' reports, and the current attempt.

Only the newest report of each learner is kept, so a watch that lists again, or an old report that arrives late, changes
nothing that is known; and what a learner has said remains said when etcd forgets everything. The announcement of the
attempt is etcd's own: forgotten there is forgotten here, and the Guardian is told, to announce it again.

A malformed value harms its own job only: it is logged and passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import structlog

from services.core.domain.codec import load
from services.core.domain.learner import LearnerStatus
from services.core.ports.status_store import Change, StatusStore

JOBS: Final = "/jobs/"
EVERYONE: Final = ""
_SCHEMA: Final = 1
log = structlog.get_logger()


@dataclass
class _Known:
    learners: dict[str, LearnerStatus] = field(default_factory=dict)
    announced: int = 0


class LearnerView:
    def __init__(self, poke: Callable[[str], None]) -> None:
        """``poke`` is called with the id of each job something changed of; with ``EVERYONE`` when all may have."""
        self._poke = poke
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
            self._poke(EVERYONE)
            return
        job_id, _, rest = change.key.removeprefix(JOBS).partition("/")
        kind, _, name = rest.partition("/")
        value = change.entry.value if change.entry is not None else ""
        if kind == "learners" and value:
            self._hear(job_id, name, value)
        elif kind == "attempt":
            self._jobs.setdefault(job_id, _Known()).announced = announced_attempt(value)
            self._poke(job_id)

    def _hear(self, job_id: str, name: str, value: str) -> None:
        try:
            one = load(LearnerStatus, json.loads(value))
            if one.name != name:
                raise ValueError(f"it says that it is {one.name}")
        except (ValueError, TypeError, RecursionError) as error:
            log.warning("learner.unreadable", job=job_id, learner=name, why=str(error))
            return
        if one.schema > _SCHEMA:
            return  # a newer helper's, during an upgrade: the cluster's own word has to do
        learners = self._jobs.setdefault(job_id, _Known()).learners
        known = learners.get(name)
        if known is None or (one.attempt, one.seq) > (known.attempt, known.seq):
            learners[name] = one
            self._poke(job_id)


def announced_attempt(value: str) -> int:
    """The number in the value of ``/jobs/<id>/attempt``; 0 for a text that is none of ours."""
    try:
        return int(json.loads(value)["attempt"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0
