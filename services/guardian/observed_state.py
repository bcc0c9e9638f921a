"""The observed state of a job's learners, from their helpers' reports and from the cluster: pure.

Of a learner's end the cluster's own record counts. A report of an end that contradicts it has no effect, because what
is in etcd may be wrong or forged; a report counts only where the cluster has no record. A helper may also be dead, slow
or cut off: a start or an end that the cluster has seen is part of the observed state before the helper reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from services.core.domain import startup
from services.core.domain.checkpoint import StoredCheckpoint
from services.core.domain.job import Attempt, Job, advanced
from services.core.domain.learner import Exit, LearnerStatus, job_status, learner_names, step_times
from services.core.domain.spec import JobSpec
from services.core.domain.startup import Span
from services.core.domain.status import PHASE_ORDER, Phase, Status
from services.core.ports.cluster import LearnerProcess, Observation

_CHECKPOINT_MS: Final = 5_000
"""A newer checkpoint is recorded so much later at the earliest: each is a write of the job's document."""
_STARTUP_MS: Final = 1_000
"""A step of the start-up is recorded with the next change of the job, and after so long by a write of its own: most
steps of a quick start cost no write."""
EMPTY: Final = Observation(learners=(), attempts=())


def ranks(spec: JobSpec | None, attempt: Attempt) -> dict[str, int]:
    """Every learner's global rank by name. If the spec cannot be read (None): of the learners that were placed."""
    if spec is None:
        return {name: rank for rank, name in enumerate(sorted(attempt.placement))}
    return {name: rank for rank, name in enumerate(learner_names(spec))}


def latest_reports(attempt: Attempt, reported: Mapping[str, LearnerStatus]) -> dict[str, LearnerStatus]:
    """The reports of the run that each learner is in. A learner that is started again has not reported yet."""
    return {name: learner for name, learner in reported.items() if learner.run == attempt.run_of(name)}


def latest_runs(attempt: Attempt, observed: Observation) -> Observation:
    """The observation without what is left of earlier runs of this attempt's learners."""
    learners = [
        process
        for process in observed.learners
        if process.attempt != attempt.number or process.planned_run == attempt.run_of(process.name)
    ]
    return replace(observed, learners=learners)


def earlier_runs(attempt: Attempt, observed: Observation) -> frozenset[str]:
    """The learners that are to run again, and of which an earlier run is still on the cluster."""
    return frozenset(
        process.name
        for process in observed.learners
        if process.attempt == attempt.number and process.planned_run < attempt.run_of(process.name)
    )


def unmade_reruns(attempt: Attempt, observed: Observation) -> dict[str, int]:
    """Learner -> run, of the learners that are to be started again and are not on the cluster.

    ``observed``: of latest runs only.
    """
    there = {process.name for process in observed.learners if process.attempt == attempt.number}
    return {name: rerun.run for name, rerun in attempt.reruns.items() if name not in there}


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
        if process.name in merged and _contradicts(merged[process.name], process):
            merged[process.name] = _without_end(merged[process.name], process)
        if process.started is None and process.exit is None and not process.reason and not process.startup:
            continue
        learner = merged.get(process.name) or _waiting(process.name, ranks[process.name], attempt)
        merged[process.name] = _with_process(learner, process)
    return merged


def contradicted(attempt: int, reported: Mapping[str, LearnerStatus], observed: Observation) -> list[LearnerStatus]:
    """Reports of an end that the cluster's record contradicts. ``merge`` ignores what they say of the end.

    Of an observation that is older than the report this also returns ends that the cluster had not recorded yet.
    """
    return [
        reported[process.name]
        for process in observed.learners
        if process.attempt == attempt and process.name in reported and _contradicts(reported[process.name], process)
    ]


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


def _contradicts(learner: LearnerStatus, process: LearnerProcess) -> bool:
    """Whether the report names an end that is not the one of the cluster's record.

    A record without an exit code (``lost``, or damaged) contradicts no exit. A helper fails before the process starts,
    so a started process contradicts its failure.
    """
    if not process.readable:
        return False
    if learner.reason and not process.reason and process.started is not None:
        return True
    if process.exit is None:
        ended = learner.exit is not None or PHASE_ORDER[learner.phase] >= PHASE_ORDER[Phase.STORING]
        return ended and not learner.helper_failed
    if process.exit.lost or learner.exit is None:
        return False
    return (learner.exit.shell_code, learner.exit.lost) != (process.exit.shell_code, False)


def _without_end(learner: LearnerStatus, process: LearnerProcess) -> LearnerStatus:
    """The report without what it says of the end, if the cluster has recorded none; the phase is one before the end."""
    if process.exit is not None:
        return replace(learner, exit=process.exit, reason="", message="")
    last = Phase.PROCESSING if process.started is not None else Phase.READY
    phase = min(learner.phase, last, key=PHASE_ORDER.__getitem__)
    entered = {earlier.value for earlier, order in PHASE_ORDER.items() if order <= PHASE_ORDER[phase]}
    times = {name: time for name, time in learner.times.items() if name in entered}
    return replace(learner, phase=phase, times=times, exit=None, reason="", message="")


def _with_process(learner: LearnerStatus, process: LearnerProcess) -> LearnerStatus:
    """The helper's report merged with the cluster's observation; the later phase counts, the end is the cluster's."""
    phase, times = learner.phase, dict(learner.times)
    if process.started is not None:
        phase = max(phase, Phase.PROCESSING, key=PHASE_ORDER.__getitem__)
        times.setdefault(Phase.PROCESSING.value, process.started)
    if process.stored:
        phase = Phase.STORED
    elif phase is Phase.STORED and process.started is not None and process.readable:
        phase = Phase.STORING  # the helper records that everything is stored before it reports it
    reason, message = (learner.reason, learner.message) if learner.reason else (process.reason, process.message)
    return replace(
        learner,
        phase=phase,
        times=times,
        exit=_recorded_exit(learner, process),
        reason=reason,
        message=message or learner.message,
        startup={**learner.startup, **process.startup},
    )


def _recorded_exit(learner: LearnerStatus, process: LearnerProcess) -> Exit | None:
    """The cluster's record of the exit; the reported exit where the record names no code, or cannot be read."""
    if not process.readable or (process.exit is not None and process.exit.lost):
        return learner.exit or process.exit
    return process.exit


def all_activated(
    ranks: Mapping[str, int], attempt: int, learners: Mapping[str, LearnerStatus], observed: Observation
) -> bool:
    """True if every learner was activated: its helper has begun, or the cluster says so.

    A helper may begin before the learner's own container can: such a learner is still ``starting``. One whose command
    has begun is not, although the cluster may say so for a while.
    """
    states = {process.name: process.state for process in observed.learners if process.attempt == attempt}
    activated = {
        name for name, learner in learners.items() if learner.phase is not Phase.WAITING or learner.exit is not None
    }
    activated |= {name for name, state in states.items() if state != "inert"}
    begun = {name for name, learner in learners.items() if Phase.PROCESSING in learner.times}
    return activated - ({name for name, state in states.items() if state == "starting"} - begun) >= set(ranks)


def blocked(attempt: int, observed: Observation) -> LearnerProcess | None:
    """The learner that keeps the gang from starting: one that waiting cannot help, else the first by name."""
    of_attempt = [process for process in observed.learners if process.attempt == attempt and process.blocked]
    return min(of_attempt, key=lambda process: (not process.blocked_for_good, process.name), default=None)


def not_stored(attempt: int, learners: Mapping[str, LearnerStatus], observed: Observation) -> list[str]:
    """Names of learners that may have run and whose helpers still have to store results. One that never ran has none.

    ``observed``: after the stop of the attempt, which also ends those that have not started.
    """
    return [process.name for process in _with_results(attempt, learners, observed) if process.can_store]


def _with_results(attempt: int, learners: Mapping[str, LearnerStatus], observed: Observation) -> list[LearnerProcess]:
    """Learners on the cluster that may have run and whose results are not stored, by name."""
    return sorted(
        (
            process
            for process in observed.learners
            if process.attempt == attempt
            and _may_have_run(process, learners.get(process.name))
            and (process.name not in learners or learners[process.name].phase is not Phase.STORED)
        ),
        key=lambda process: process.name,
    )


def _may_have_run(process: LearnerProcess, learner: LearnerStatus | None) -> bool:
    """False if the cluster knows that it never ran, or has no record of it and its helper has reported no start."""
    reported = learner is not None and Phase.PROCESSING.value in learner.times
    return process.started is not None or process.may_have_started or (reported and not process.readable)


def storage_failures(
    attempt: int, learners: Mapping[str, LearnerStatus], observed: Observation, *, killed: bool = False
) -> str:
    """Says which results could not be stored, for people; empty if all were. ``killed``: a kill ended the storing."""
    failures = [
        f"{name}: {learner.message}"
        for name, learner in sorted(learners.items())
        if learner.attempt == attempt
        and learner.exit is not None
        and learner.phase is Phase.STORED
        and not learner.reason
        and learner.message
    ]
    why = "before its kill took effect" if killed else "in time (store_timeout)"
    failures += [
        f"{process.name} did not store its results "
        + (why if process.can_store else "before its pod ended (see store_timeout) or its node was lost")
        for process in _with_results(attempt, learners, observed)
    ]
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"{failures[0]}{more}" if failures else ""


def has_inert(attempt: int, observed: Observation) -> bool:
    """Whether a learner on the cluster was neither activated nor stopped."""
    return any(process.attempt == attempt and process.state == "inert" for process in observed.learners)


def not_ended(attempt: int, observed: Observation) -> list[str]:
    """Names of learners on the cluster that have not exited."""
    return sorted(process.name for process in observed.learners if process.attempt == attempt and process.exit is None)


def digests(learners: Mapping[str, LearnerStatus]) -> tuple[str, str]:
    """(environment, data): resolved by the helpers, equal for all learners of an attempt; "" while unknown."""
    return (
        next((learner.env_digest for learner in learners.values() if learner.env_digest), ""),
        next((learner.data_digest for learner in learners.values() if learner.data_digest), ""),
    )


def bound_placement(attempt: Attempt, observed: Observation) -> Mapping[str, str]:
    """Learner -> node: where the cluster has bound each learner, and as before where it names no node.

    The dispatcher charges this. Where the cluster's own scheduler chooses the nodes, the dispatcher's placement is a
    proposal; it counts until the whole gang is bound, so that a gang is never charged partly here and partly there.
    """
    bound = {
        process.name: process.node
        for process in latest_runs(attempt, observed).learners
        if process.attempt == attempt.number and process.node
    }
    if not attempt.committed and not attempt.placement.keys() <= bound.keys():
        return attempt.placement
    return {name: bound.get(name, node) for name, node in attempt.placement.items()}


def with_observed(
    job: Job,
    learners: Mapping[str, LearnerStatus],
    *,
    expected: int,
    activated: bool,
    now: int,
    observed: Observation = EMPTY,
) -> Job:
    """The job with the observed state recorded: commitment, nodes, start, digests, status. Unchanged if nothing is new.

    ``expected``: number of learners. ``activated``: every learner was activated. ``now``: Unix milliseconds.
    ``observed``: by the cluster, for the nodes.
    """
    if job.verdict is not None:
        return job
    times, (environment, data) = step_times(learners.values()), digests(learners)
    attempt = replace(
        job.attempt,
        placement=bound_placement(job.attempt, observed),
        committed=job.attempt.committed or activated,
        started=job.attempt.started or times.get(Status.PROCESSING),
        env_digest=job.attempt.env_digest or environment,
        data_digest=job.attempt.data_digest or data,
    )
    counters = replace(job.counters, rollbacks=0) if attempt.committed else job.counters
    counters = replace(counters, outages=0) if attempt.started else counters
    ahead = advanced(job, job_status(learners.values(), expected), actor="guardian", now=now, times=times)
    checkpoint = newest_checkpoint(job, learners, now=now, least_ms=_CHECKPOINT_MS)
    known, steps = attempt.startup, startup_steps(job.attempt, learners, expected=expected, now=now)
    if (ahead, attempt, counters, checkpoint) == (job, job.attempt, job.counters, job.checkpoint) and (
        not startup.is_news(known, steps, now=now, after_ms=_STARTUP_MS)
    ):
        return job
    attempt = replace(attempt, startup=steps)
    return replace(ahead, attempt=attempt, counters=counters, checkpoint=checkpoint, updated=now)


def startup_steps(
    attempt: Attempt, learners: Mapping[str, LearnerStatus], *, expected: int, now: int
) -> Mapping[str, Span]:
    """The steps of the start-up, as recorded and as the learners report them. ``now``: Unix milliseconds."""
    reported = (learner.startup for learner in learners.values())
    return startup.observed(attempt.startup, reported, expected=expected, now=now)


def newest_checkpoint(
    job: Job, learners: Mapping[str, LearnerStatus], *, now: int, least_ms: int = 0
) -> StoredCheckpoint | None:
    """The newest checkpoint that is known: the job's, or one of a learner that is newer by ``least_ms``.

    ``now``: Unix milliseconds; no later time is recorded.
    """
    reported = [
        replace(learner.checkpoint, learner=name, attempt=learner.attempt, time=min(learner.checkpoint.time, now))
        for name, learner in learners.items()
        if learner.checkpoint is not None
    ]
    newest = max(reported, key=lambda checkpoint: checkpoint.time, default=None)
    if newest is None or (job.checkpoint is not None and newest.time - max(least_ms, 1) < job.checkpoint.time):
        return job.checkpoint
    return newest
