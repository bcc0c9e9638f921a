"""The text of `weft explain`: a job's state in a sentence, and what its owner can do.

Every command in a hint contains the job's id, so that it can be copied and run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import UNSET, UnsetType

from services.api.answers import Answer, doc
from services.api.causes import Cause
from services.api.clients import Waiting
from services.api.platform import spec_of
from services.api.startup import StartupStep, startup
from services.core.domain.job import Job
from services.core.domain.outages import Outage, is_outage
from services.core.domain.spec import JobSpec
from services.core.domain.status import Desired, PendingReason, Status
from services.core.domain.units import format_bytes, format_duration

_ADVICE: Final[Mapping[str, str]] = {
    PendingReason.TOO_LARGE_FOR_CLUSTER: (
        "`weft kill {id}`, and submit it again with less `resources` or fewer `learners`"
    ),
    PendingReason.WAITING_FOR_CAPACITY: "it starts by itself once running jobs have ended",
    PendingReason.WAITING_FOR_DISK: "nothing of the job is wrong: it starts by itself once the operator has made room",
    PendingReason.BACK_OFF: "it is tried again by itself; `retries.backoff` sets the pause",
    PendingReason.RELEASING: "the hardware of its last attempt is being given back; it continues by itself",
    PendingReason.PLATFORM_STOPPING: "it starts by itself after the next `weft up`",
    PendingReason.TENANT_NOT_READY: "nothing of the job is wrong: tell the operator; it then starts by itself",
    "PlatformStopped": "the next `weft up` queues it again by itself",
    "ExitCode": "`weft logs {id}{rank} --tail 50` shows its last lines",
    "Signalled": "`weft logs {id}{rank} --tail 50` shows its last lines",
    "OOMKilled": "raise `{memory_field}` in the spec; `weft clone {id} --set {memory_field}={memory}` submits it again",
    "DiskExceeded": "write less, e.g. keep fewer checkpoints, and submit it again",
    "PortTaken": "listen only on ports that its variables name (MASTER_PORT), or on port 0 for any free one",
    "DataChanged": "submit it again once the data no longer changes; its learners must all read one version",
    Outage.NO_SPACE: "nothing of the job is wrong: it continues by itself once the operator has made room",
    Outage.INDEX_UNAVAILABLE: "nothing of the job is wrong: it continues by itself once the package index answers",
    Outage.DATA_STORE_UNAVAILABLE: "it continues by itself once the data store answers; check its address",
    Outage.OBJECT_STORE_UNAVAILABLE: "nothing of the job is wrong: it continues by itself once the store is back",
    Outage.SECRETS_UNAVAILABLE: "nothing of the job is wrong: it continues by itself once the api answers",
    Outage.QUOTA_IN_USE: "it starts by itself once other jobs of its tenant have ended",
    Outage.MACHINE_FAULT: "nothing of the job is wrong: it is tried again by itself",
    "DataStoreDenied": "use an address or a folder that the operator allows, or send small files with the code",
    "DeadlineExceeded": "raise `max_runtime`; `weft clone {id} --set max_runtime={max_runtime}` submits it again",
    "DataNotFound": "correct `url` or `path` of its data store and `path` of its inputs, and submit it again",
    "SecretInvalid": "set the secret again (`weft secret set`), and submit the job again: `weft clone {id}`",
    "EnvironmentFailed": "correct requirements.txt (packages are installed from wheels only) and submit it again",
}
_AFTER_AN_ATTEMPT: Final = frozenset({PendingReason.BACK_OFF, PendingReason.RELEASING})
"""Reasons to wait that follow from the end of an attempt, whose own reason is shown as well."""
_NEXT: Final[Mapping[Status, tuple[str, ...]]] = {
    Status.DOWNLOADING: ("its code, data and packages are being prepared; new packages take longest",),
    Status.PROCESSING: ("`weft logs -f {id}` follows what it prints", "`weft metrics {id}` shows its curves"),
    Status.COMPLETED: ("`weft download {id}` fetches its results", "`weft metrics {id}` shows its curves"),
    Status.KILLED: ("`weft clone {id}` submits it again",),
    Status.HALTED: ("`weft resume {id}` continues from its checkpoints",),
}


class JobExplanation(Answer):
    """Why a job is in its state."""

    id: Annotated[str, doc("Id of the job.")]
    status: Annotated[str, doc("Its status.")]
    summary: Annotated[str, doc("Its state in one sentence, whose subject is the job.")]
    reason: Annotated[str, doc("Stable code of why it has this status; may be empty.")]
    message: Annotated[str, doc("The reason in words; may be empty.")]
    pending_reason: Annotated[str, doc("Stable code of why it waits; else empty.")]
    cause: Annotated[
        str,
        doc("What went wrong, read from the output of the learner that failed first; empty if nothing is recognised."),
    ]
    hints: Annotated[list[str], doc("What its owner can do, with commands that can be typed as they stand.")]
    startup: Annotated[list[StartupStep], doc("The start-up of the current or last attempt, in order.")]
    queue_position: Annotated[
        int | UnsetType, doc("Place in the queue, from 1. Only while it waits and the dispatcher answers.")
    ] = UNSET


_BOUNDS: Final[Mapping[str, str]] = {
    "log_bytes": "log lines (WEFT_METRICS_JOB_LOG_BYTES)",
    "points": "metric points (WEFT_METRICS_JOB_POINTS)",
    "series": "points of further curves (WEFT_METRICS_JOB_SERIES)",
    "sources": "lines and points of further files (WEFT_METRICS_JOB_SOURCES)",
}


def explain(
    job: Job,
    waiting: Waiting | None,
    *,
    now: int,
    left_out: Mapping[str, int] | None = None,
    cause: Cause | None = None,
) -> JobExplanation:
    """The job's state, its reason, and hints. ``waiting``: the dispatcher's decision, if known. ``now``: Unix ms.

    ``left_out``: lines and points beyond a bound of the job, bound -> count. ``cause``: of its failure, if known.
    """
    state = job.state
    pending = waiting.pending_reason if waiting else state.pending_reason
    return JobExplanation(
        id=job.id,
        status=job.status.value,
        summary=_summary(job, waiting, now=now),
        reason=state.reason,
        message=state.message,
        pending_reason=pending,
        cause=cause.sentence if cause is not None else "",
        hints=[
            *([cause.advice] if cause is not None and cause.advice else []),
            *_hints(job, pending),
            *_bounds_reached(left_out or {}),
        ],
        startup=startup(job),
        queue_position=waiting.position if waiting else UNSET,
    )


def _summary(job: Job, waiting: Waiting | None, *, now: int) -> str:
    if job.status is Status.QUEUED:
        place = f"waits at place {waiting.position}" if waiting else "waits"
        why = waiting.message if waiting else job.state.message
        if waiting and waiting.pending_reason in _AFTER_AN_ATTEMPT and job.state.message:
            why = f"{job.state.message} ({waiting.message})"
        return f"{place}: {why}" if why else f"{place} to be admitted"
    if job.at_rest or job.finished is not None:
        message = _end_message(job)
        return f"is {job.status.value}{_run_time(job)}{f': {message}' if message else ''}"
    if job.observed_generation < job.generation and job.desired is not Desired.RUN:
        return f"is {job.status.value}; a {job.desired.value} by {job.requester} is under way"
    duration = f" for {_span(now - job.state.since)}{_attempt(job)}"
    return f"is {job.status.value}{duration}" + (f": {job.state.message}" if job.state.message else "")


def _end_message(job: Job) -> str:
    if job.state.message or job.status is not Status.KILLED:
        return job.state.message
    return f"killed by {job.requester}" if job.desired is Desired.KILL else ""


def _run_time(job: Job) -> str:
    """How long its last attempt ran, and its number if it was not the first."""
    if job.attempt.started is None:
        return " before it ever ran"
    ended = job.state.since if job.finished is None else job.finished
    return f" after {_span(ended - job.attempt.started)}{_attempt(job)}"


def _attempt(job: Job) -> str:
    return f" in attempt {job.attempt.number}" if job.attempt.number > 1 else ""


def _hints(job: Job, pending: str) -> list[str]:
    rank = ""
    spec = spec_of(job)
    if job.verdict is not None and spec is not None and len(spec.roles) == 1 and spec.learners > 1:
        number = job.verdict.learner.rpartition("-")[2]
        rank = f" --rank {number}" if number.isdigit() else ""
    if is_outage(job.state.reason) and pending == PendingReason.BACK_OFF:
        pending = ""  # its advice is for the pauses that the job's owner sets
    reason = job.state.reason
    if reason == "PlatformStopped" and not job.halted_by_platform:
        reason = ""  # a user has halted it since
    hints = [_ADVICE[code] for code in (pending, reason) if code in _ADVICE]
    hints += _NEXT.get(job.status, ())
    values = {"id": job.id, "rank": rank, **_raised(job, spec)}
    return [hint.format_map(values) for hint in hints]


def _raised(job: Job, spec: JobSpec | None) -> dict[str, str]:
    """What to write in place of limits that were reached: twice as much."""
    if spec is None:
        return {"memory_field": "resources.memory", "memory": "4GB", "max_runtime": "12h"}
    role = job.verdict.learner.rpartition("-")[0] if job.verdict is not None else ""
    role = role if role in spec.roles else next(iter(spec.roles))
    return {
        "memory_field": spec.memory_field(role),
        "memory": format_bytes(2 * spec.role_resources(role).memory),
        "max_runtime": format_duration(2 * spec.max_runtime) if spec.max_runtime else "12h",
    }


def _bounds_reached(left_out: Mapping[str, int]) -> list[str]:
    return [
        f"{count:,} {_BOUNDS.get(bound, bound)} are beyond the job's limit, and left out; its stored files have them"
        for bound, count in sorted(left_out.items())
    ]


def _span(ms: int) -> str:
    """Formats milliseconds: 0.7 s, 38 s, 2 min 5 s, 3 h 12 min."""
    seconds = max(0, ms) / 1000
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
