"""What etcd says of all jobs, from one watch for the whole process: learners' reports, and the announced attempts.

Only the newest report of each learner is kept, so a repeated listing and a late old report change nothing. Reports stay
known when etcd loses its data. An announced attempt does not: if etcd loses it, the job's Guardian reconciles and
announces it again.

A malformed value harms its own job only: it is in quarantine, and ignored, until it is overwritten or removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from services.core.domain.codec import MALFORMED, load
from services.core.domain.document import MAX_TIME_MS
from services.core.domain.learner import LearnerStatus
from services.core.domain.status_keys import JOBS, job_prefix, parse_job_key
from services.core.ports.status_store import Change, StatusStore
from services.core.runtime.quarantine import STATUS, Quarantine

ALL_JOBS: Final = ""
_SCHEMA: Final = 1
_MOST_FILES: Final = 2**31
_MOST_ATTEMPTS: Final = 2**31


@dataclass
class _JobState:
    learners: dict[str, LearnerStatus] = field(default_factory=dict)
    """The newest report by name."""
    announced: int = 0

    @property
    def newest(self) -> int:
        """The newest attempt of which etcd has an entry."""
        return max([self.announced, *(learner.attempt for learner in self.learners.values())])


class LearnerView:
    def __init__(self, on_change: Callable[[str], None], quarantine: Quarantine) -> None:
        """``on_change`` is called with the id of a job that changed, or with ``ALL_JOBS`` if all may have changed."""
        self._on_change, self._quarantine = on_change, quarantine
        self._jobs: dict[str, _JobState] = {}

    def learners(self, job_id: str, attempt: int) -> Mapping[str, LearnerStatus]:
        """The learners of that attempt by name."""
        state = self._jobs.get(job_id, _JobState())
        return {name: learner for name, learner in state.learners.items() if learner.attempt == attempt}

    def announced(self, job_id: str) -> int:
        """The current attempt according to etcd; 0 if it has none."""
        return self._jobs.get(job_id, _JobState()).announced

    def forget(self, job_id: str, *, through: int) -> None:
        """Removes a released job. One with an attempt after ``through`` stays: it has been admitted again."""
        state = self._jobs.get(job_id)
        if state is not None and state.newest <= through:
            del self._jobs[job_id]

    def known_beyond(self, job_ids: Collection[str]) -> dict[str, int]:
        """The jobs of this view that are not among these, each with its newest attempt."""
        return {job_id: self._jobs[job_id].newest for job_id in self._jobs.keys() - job_ids}

    async def follow(self, status: StatusStore, job_id: str = "") -> None:
        """Applies changes until cancelled. ``job_id``: those of this job only."""
        async with aclosing(status.watch(job_prefix(job_id) if job_id else JOBS)) as changes:
            async for change in changes:
                self.apply(change)

    def apply(self, change: Change) -> None:
        """Applies one change of the watch. Never raises for a malformed value."""
        if change.kind == "reset":
            for state in self._jobs.values():
                state.announced = 0
            self._quarantine.keep_only(STATUS, ())
            self._on_change(ALL_JOBS)
            return
        key = parse_job_key(change.key)
        try:
            if key.is_learner and change.entry is not None:
                self._apply_report(key.job_id, key.name, change.entry.value)
            elif key.is_attempt:
                self._apply_attempt(key.job_id, change.entry.value if change.entry is not None else None)
        except MALFORMED as error:
            malformed = change.entry.malformed if change.entry is not None else ""
            self._quarantine.hold(STATUS, change.key, malformed or str(error) or type(error).__name__, job=key.job_id)
        else:
            self._quarantine.release(STATUS, change.key)

    def _apply_attempt(self, job_id: str, value: str | None) -> None:
        state = self._jobs.setdefault(job_id, _JobState())
        state.announced = 0
        self._on_change(job_id)
        if value is not None:
            state.announced = _parse_attempt(value)

    def _apply_report(self, job_id: str, name: str, value: str) -> None:
        document = json.loads(value)
        if isinstance(document, dict) and _is_newer(document.get("schema")):
            return  # written by a newer helper during an upgrade: the cluster's observation is used instead
        report = load(LearnerStatus, document)
        if report.name != name:
            raise ValueError(f"it says that it is {report.name}")
        times = [*report.times.values(), *(span.began for span in report.startup.values())]
        times += [span.ended for span in report.startup.values() if span.ended is not None]
        times += [report.exit.time] if report.exit else []
        if any(not 0 <= time <= MAX_TIME_MS for time in times):
            raise ValueError("it has a time before 1970 or after 9999")
        checkpoint = report.checkpoint
        if checkpoint and not (
            0 <= checkpoint.time <= MAX_TIME_MS and 0 <= checkpoint.files < _MOST_FILES and checkpoint.size >= 0
        ):
            raise ValueError("its checkpoint has a time, a number of files or a size that none has")
        learners = self._jobs.setdefault(job_id, _JobState()).learners
        known = learners.get(name)
        if known is None or report.order > known.order:
            learners[name] = report
            self._on_change(job_id)


def announced_attempt(value: str) -> int:
    """The number in the value of ``/jobs/<id>/attempt``; 0 if the value is malformed."""
    try:
        return _parse_attempt(value)
    except MALFORMED:
        return 0


def _parse_attempt(value: str) -> int:
    number = json.loads(value)["attempt"]
    if not isinstance(number, int) or not 0 < number <= _MOST_ATTEMPTS:
        raise ValueError("it names no attempt")
    return number


def _is_newer(schema: object) -> bool:
    return isinstance(schema, int) and schema > _SCHEMA
