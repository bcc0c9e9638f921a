"""The observed state of a job's learners, from their helpers' reports and from the cluster: pure.

A helper may be dead, slow or cut off, so the cluster's own observation always counts: a start or an end that the
cluster has seen is part of the observed state before the helper reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from services.core.domain.job import Attempt, Job, advanced
from services.core.domain.learner import Exit, LearnerStatus, job_status, learner_name, step_times
from services.core.domain.spec import JobSpec
from services.core.domain.status import PHASE_ORDER, Phase, Status
from services.core.ports.cluster import LearnerProcess, Observation

EMPTY: Final = Observation(learners=(), attempts=())


def ranks(spec: JobSpec | None, attempt: Attempt) -> dict[str, int]:
    """Every learner's global rank by name. If the spec cannot be read (None): of the learners that were placed."""
    if spec is None:
        return {name: rank for rank, name in enumerate(sorted(attempt.placement))}
    names = [learner_name(name, index) for name, role in spec.roles.items() for index in range(role.count)]
    return {name: rank for rank, name in enumerate(names)}


def merge(
    ranks: Mapping[str, int], attempt: int, reported: Mapping[str, LearnerStatus], observed: Observation
) -> dict[str, LearnerStatus]:
    """Learners of the attempt that a helper has reported or the cluster has observed, by name.

    ``ranks``: of all learners of the job; reports and processes of other names are ignored.
    """
    merged = {name: learner for name, learner in reported.items() if name in ranks and learner.role == _role_of(name)}
    for process in observed.learners:
        if process.attempt != attempt or process.name not in ranks:
            continue
        if process.started is None and process.exit is None and not process.reason:
            continue
        learner = merged.get(process.name) or _waiting(process.name, ranks[process.name], attempt)
        merged[process.name] = _with_process(learner, process)
    return merged


def with_lost(
    ranks: Mapping[str, int], attempt: int, learners: Mapping[str, LearnerStatus], observed: Observation, *, now: int
) -> dict[str, LearnerStatus]:
    """``learners`` of a provisioned attempt, where those missing on the cluster have exited as lost.

    Their last report does not matter. If the cluster has something of the attempt, but no learner of it can be read,
    no learner counts as lost: a newer version may have written it. ``now``: Unix milliseconds.
    """
    there = {process.name for process in observed.learners if process.attempt == attempt}
    if not there and attempt in observed.attempts:
        return dict(learners)
    missing = {
        name: learners.get(name) or _waiting(name, rank, attempt) for name, rank in ranks.items() if name not in there
    }
    lost = {
        name: replace(learner, exit=Exit(time=now, lost=True))
        for name, learner in missing.items()
        if learner.exit is None and not learner.helper_failed
    }
    return {**learners, **lost}


def _role_of(name: str) -> str:
    return name.rpartition("-")[0]


def _waiting(name: str, rank: int, attempt: int) -> LearnerStatus:
    """A learner that has reported nothing."""
    return LearnerStatus(name=name, role=_role_of(name), rank=rank, attempt=attempt, seq=0, phase=Phase.WAITING)


def _with_process(learner: LearnerStatus, process: LearnerProcess) -> LearnerStatus:
    """The helper's report merged with the cluster's observation; the later phase of the two counts."""
    phase, times = learner.phase, dict(learner.times)
    if process.started is not None:
        phase = max(phase, Phase.PROCESSING, key=PHASE_ORDER.__getitem__)
        times.setdefault(Phase.PROCESSING.value, process.started)
    if process.stored:
        phase = Phase.STORED
    reason, message = (learner.reason, learner.message) if learner.reason else (process.reason, process.message)
    return replace(
        learner,
        phase=phase,
        times=times,
        exit=learner.exit or process.exit,
        reason=reason,
        message=message or learner.message,
    )


def all_activated(
    ranks: Mapping[str, int], attempt: int, learners: Mapping[str, LearnerStatus], observed: Observation
) -> bool:
    """True if every learner was activated: its helper has begun, or the cluster says so."""
    activated = {
        name for name, learner in learners.items() if learner.phase is not Phase.WAITING or learner.exit is not None
    }
    activated |= {
        process.name for process in observed.learners if process.attempt == attempt and process.state != "inert"
    }
    return activated >= set(ranks)


def not_stored(attempt: int, learners: Mapping[str, LearnerStatus], observed: Observation) -> list[str]:
    """Names of learners on the cluster that have run and whose results are not stored. One that never ran has none."""
    return sorted(
        process.name
        for process in observed.learners
        if process.attempt == attempt
        and process.started is not None
        and (process.name not in learners or learners[process.name].phase is not Phase.STORED)
    )


def storage_failures(attempt: int, learners: Mapping[str, LearnerStatus], observed: Observation) -> str:
    """Says which results could not be stored, for people; empty if all were."""
    failures = [
        f"{name}: {learner.message}"
        for name, learner in sorted(learners.items())
        if learner.attempt == attempt
        and learner.exit is not None
        and learner.phase is Phase.STORED
        and not learner.reason
        and learner.message
    ]
    failures += [
        f"{name} did not store its results in time (store_timeout)" for name in not_stored(attempt, learners, observed)
    ]
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"{failures[0]}{more}" if failures else ""


def not_ended(attempt: int, observed: Observation) -> list[str]:
    """Names of learners on the cluster that have not exited."""
    return sorted(process.name for process in observed.learners if process.attempt == attempt and process.exit is None)


def digests(learners: Mapping[str, LearnerStatus]) -> tuple[str, str]:
    """(environment, data): resolved by the helpers, equal for all learners of an attempt; "" while unknown."""
    return (
        next((learner.env_digest for learner in learners.values() if learner.env_digest), ""),
        next((learner.data_digest for learner in learners.values() if learner.data_digest), ""),
    )


def with_observed(job: Job, learners: Mapping[str, LearnerStatus], *, expected: int, activated: bool, now: int) -> Job:
    """The job with the observed state recorded: commitment, start, digests, status. Unchanged if nothing is new.

    ``expected``: number of learners. ``activated``: every learner was activated. ``now``: Unix milliseconds.
    """
    if job.verdict is not None:
        return job
    times, (environment, data) = step_times(learners.values()), digests(learners)
    attempt = replace(
        job.attempt,
        committed=job.attempt.committed or activated,
        started=job.attempt.started or times.get(Status.PROCESSING),
        env_digest=job.attempt.env_digest or environment,
        data_digest=job.attempt.data_digest or data,
    )
    counters = replace(job.counters, rollbacks=0) if attempt.committed else job.counters
    counters = replace(counters, outages=0) if attempt.started else counters
    ahead = advanced(job, job_status(learners.values(), expected), actor="guardian", now=now, times=times)
    if (ahead, attempt, counters) == (job, job.attempt, job.counters):
        return job
    return replace(ahead, attempt=attempt, counters=counters, updated=now)
