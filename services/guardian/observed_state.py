"""What is known of a job's learners, from their helpers and from the cluster: pure.

A helper may be dead, slow or cut off; the cluster's own word on a process always counts. Where the cluster has seen a
start or an end that the helper has not told yet, it is a fact already.
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

NOTHING: Final = Observation(learners=(), attempts=())


def roster(spec: JobSpec | None, attempt: Attempt) -> dict[str, int]:
    """Every learner of the job and its global rank. Where the spec cannot be read any more: those that were placed."""
    if spec is None:
        return {name: rank for rank, name in enumerate(sorted(attempt.placement))}
    names = [learner_name(role, index) for role, each in spec.roles.items() for index in range(each.count)]
    return {name: rank for rank, name in enumerate(names)}


def learners(
    ranks: Mapping[str, int], attempt: int, reported: Mapping[str, LearnerStatus], observed: Observation
) -> dict[str, LearnerStatus]:
    """The learners of the attempt of which anything is known, by name. ``ranks``: see ``roster``."""
    merged = {name: one for name, one in reported.items() if name in ranks and one.role == _role(name)}
    for process in observed.learners:
        if process.attempt != attempt or process.name not in ranks:
            continue
        if process.started is None and process.exit is None and not process.reason:
            continue
        known = merged.get(process.name) or LearnerStatus(
            name=process.name, role=_role(process.name), rank=ranks[process.name], attempt=attempt, seq=0,
            phase=Phase.WAITING,
        )  # fmt: skip
        merged[process.name] = _with(known, process)
    return merged


def with_vanished(
    ranks: Mapping[str, int], attempt: int, known: Mapping[str, LearnerStatus], seen: Observation, *, now: int
) -> dict[str, LearnerStatus]:
    """Of an attempt that was provisioned: who is not on the cluster any more is lost, whatever it said last.

    Where something of the attempt is there and not one learner of it can be made out, nobody is: it may be written by
    a newer version.
    """
    there = {one.name for one in seen.learners if one.attempt == attempt}
    if not there and attempt in seen.attempts:
        return dict(known)
    gone = {
        name: known.get(name)
        or LearnerStatus(name=name, role=_role(name), rank=rank, attempt=attempt, seq=0, phase=Phase.WAITING)
        for name, rank in ranks.items()
        if name not in there
    }
    lost = {
        name: replace(one, exit=Exit(time=now, lost=True))
        for name, one in gone.items()
        if one.exit is None and not one.helper_failed
    }
    return {**known, **lost}


def _role(learner: str) -> str:
    return learner.rpartition("-")[0]


def _with(known: LearnerStatus, process: LearnerProcess) -> LearnerStatus:
    """The helper's report and the cluster's word, whichever is further."""
    phase, times = known.phase, dict(known.times)
    if process.started is not None:
        phase = max(phase, Phase.PROCESSING, key=PHASE_ORDER.__getitem__)
        times.setdefault(Phase.PROCESSING.value, process.started)
    if process.stored:
        phase = Phase.STORED
    reason, message = (known.reason, known.message) if known.reason else (process.reason, process.message)
    return replace(
        known,
        phase=phase,
        times=times,
        exit=known.exit or process.exit,
        reason=reason,
        message=message or known.message,
    )


def provisioned(ranks: Mapping[str, int], attempt: int, known: Mapping[str, LearnerStatus], seen: Observation) -> bool:
    """Whether every learner was let go: its helper has begun, or the cluster says so."""
    going = {name for name, one in known.items() if one.phase is not Phase.WAITING or one.exit is not None}
    going |= {one.name for one in seen.learners if one.attempt == attempt and one.state != "inert"}
    return going >= set(ranks)


def unstored(attempt: int, known: Mapping[str, LearnerStatus], seen: Observation) -> list[str]:
    """Learners that are there, have run, and whose results are not stored yet. One that never ran has none."""
    return sorted(
        one.name
        for one in seen.learners
        if one.attempt == attempt
        and one.started is not None
        and (one.name not in known or known[one.name].phase is not Phase.STORED)
    )


def unkept(attempt: int, known: Mapping[str, LearnerStatus], seen: Observation) -> str:
    """What of the learners' results could not be stored, for people; empty where all was. Who never ran had none."""
    late = unstored(attempt, known, seen)
    told = {
        name: one.message
        for name, one in sorted(known.items())
        if one.attempt == attempt and one.exit is not None and one.phase is Phase.STORED and not one.reason
    }
    said = [f"{name}: {message}" for name, message in told.items() if message]
    said += [f"{name} did not store its results in time (store_timeout)" for name in late]
    more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
    return f"{said[0]}{more}" if said else ""


def unended(attempt: int, seen: Observation) -> list[str]:
    """Learners that are there and have not ended."""
    return sorted(one.name for one in seen.learners if one.attempt == attempt and one.exit is None)


def digests(known: Mapping[str, LearnerStatus]) -> tuple[str, str]:
    """(environment, data): what the helpers resolved, the same for all learners of an attempt; "" while unknown."""
    return (
        next((one.env_digest for one in known.values() if one.env_digest), ""),
        next((one.data_digest for one in known.values() if one.data_digest), ""),
    )


def with_observed(job: Job, known: Mapping[str, LearnerStatus], *, expected: int, going: bool, now: int) -> Job:
    """The job with what is known in its document: commitment, start, digests, and how far it is. Itself if nothing new.

    ``going``: every learner was let go.
    """
    if job.verdict is not None:
        return job
    times, (environment, data) = step_times(known.values()), digests(known)
    attempt = replace(
        job.attempt,
        committed=job.attempt.committed or going,
        started=job.attempt.started or times.get(Status.PROCESSING),
        env_digest=job.attempt.env_digest or environment,
        data_digest=job.attempt.data_digest or data,
    )
    counters = replace(job.counters, rollbacks=0) if attempt.committed else job.counters
    ahead = advanced(job, job_status(known.values(), expected), actor="guardian", now=now, times=times)
    if (ahead, attempt, counters) == (job, job.attempt, job.counters):
        return job
    return replace(ahead, attempt=attempt, counters=counters, updated=now)
