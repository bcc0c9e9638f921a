"""What etcd says of all jobs' learners, kept up by one watch for the whole process.

Only the newest report of each learner is kept, so a watch that lists again, or an old report that arrives late, changes
nothing that is known. A malformed value harms its own job only: it is logged and passed over.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from services.core.domain.codec import load
from services.core.domain.learner import LearnerStatus
from services.core.ports.status_store import Change, StatusStore

JOBS: Final = "/jobs/"
log = structlog.get_logger()


class LearnerView:
    def __init__(self, poke: Callable[[str], None]) -> None:
        """``poke`` is called with the id of each job something changed of."""
        self._poke = poke
        self._learners: dict[str, dict[str, LearnerStatus]] = defaultdict(dict)

    def of(self, job_id: str, attempt: int) -> Mapping[str, LearnerStatus]:
        """The learners of that attempt, by name."""
        return {name: one for name, one in self._learners.get(job_id, {}).items() if one.attempt == attempt}

    def forget(self, job_id: str) -> None:
        self._learners.pop(job_id, None)

    async def follow(self, status: StatusStore) -> None:
        """Runs for ever."""
        async for change in status.watch(JOBS):
            self.apply(change)

    def apply(self, change: Change) -> None:
        # On a reset nothing is forgotten: etcd may have lost everything, but what a learner has said remains said.
        # A key that goes away is no news either: it goes with its whole job.
        if change.kind == "reset":
            for job_id in list(self._learners):
                self._poke(job_id)
            return
        job_id, _, rest = change.key.removeprefix(JOBS).partition("/")
        kind, _, name = rest.partition("/")
        if kind != "learners" or change.entry is None:
            if change.kind == "delete":
                self._poke(job_id)
            return
        try:
            one = load(LearnerStatus, json.loads(change.entry.value))
        except (ValueError, TypeError) as error:
            log.warning("learner.unreadable", job=job_id, learner=name, why=str(error))
            return
        known = self._learners[job_id].get(name)
        if known is None or (one.attempt, one.seq) > (known.attempt, known.seq):
            self._learners[job_id][name] = one
            self._poke(job_id)
