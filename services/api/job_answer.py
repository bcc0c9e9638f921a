"""A job, its history and its hardware as every entry point shows them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, UnsetType, structs

from services.api.answers import Answer, Time, as_time, as_time_or_none, doc, to_json
from services.api.clients import Waiting
from services.api.job_changes import Rendered
from services.api.job_metrics import JobMetric
from services.api.platform import spec_of
from services.api.startup import StartupStep, startup
from services.api.usage import LearnerUsage
from services.core.domain.checkpoint import StoredCheckpoint
from services.core.domain.codec import dump
from services.core.domain.job import Attempt, Event, Verdict
from services.core.domain.job import Job as JobDocument
from services.core.domain.sizes import Size
from services.core.domain.spec import JobSpec


class ResourceSize(Answer):
    """Hardware of one learner, of one node, or a sum."""

    cpus: Annotated[float, doc("CPU cores.")]
    memory: Annotated[int, doc("Bytes of memory.")]
    gpus: Annotated[float, doc("GPUs.")]


class JobAttempt(Answer):
    """One try to run the job, from its admission to the release of its hardware."""

    number: Annotated[int, doc("Counts from 1; 0 before the first admission.")]
    admitted: Annotated[Time | None, doc("When the dispatcher admitted it; null before.")]
    started: Annotated[Time | None, doc("When its first learner ran; null before.")]
    committed: Annotated[bool, doc("All of its learners are provisioned; before that a failure rolls all back.")]
    placement: Annotated[dict[str, str], doc("Name of the node of each learner, by learner.")]


class JobCounters(Answer):
    """How often something happened to the job."""

    retries: Annotated[int, doc("Attempts that ended by a failure of the job itself; `retries.max` limits them.")]
    restarts: Annotated[int, doc("Attempts that ended by a failure of the platform; nothing limits them.")]
    preemptions: Annotated[int, doc("Attempts that were ended in favour of other jobs.")]


class JobCheckpoint(Answer):
    """A stored checkpoint. What its learner saved later would be lost with its machine."""

    time: Annotated[Time, doc("When it was stored.")]
    files: Annotated[int, doc("Number of its files.")]
    size: Annotated[int, doc("Bytes of its files.")]
    learner: Annotated[str, doc("The learner that saved it, e.g. worker-0.")]
    attempt: Annotated[int, doc("Number of the attempt that saved it.")]


class JobVerdict(Answer):
    """The decision that ended the last attempt."""

    to: Annotated[str, doc("The status that was decided.")]
    reason: Annotated[str, doc("Stable code of the reason, e.g. ExitCode.")]
    message: Annotated[str, doc("The reason in words.")]
    time: Annotated[Time, doc("When it was decided.")]
    learner: Annotated[str, doc("The learner that decided it, e.g. worker-0; empty if no single one did.")]
    exit_code: Annotated[int | None, doc("Exit code of that learner; null if it did not exit by itself.")]
    signal: Annotated[int | None, doc("Number of the signal that ended that learner; null if none did.")]


class Job(Answer):
    """A job."""

    id: Annotated[str, doc("Id of the job: j and 22 characters.")]
    name: Annotated[str, doc("Name from the spec.")]
    tenant: Annotated[str, doc("Tenant that the job belongs to.")]
    user: Annotated[str, doc("User who submitted it.")]
    tags: Annotated[list[str], doc("Tags from the spec.")]
    status: Annotated[
        str,
        doc("QUEUED, PENDING, DOWNLOADING, PROCESSING, STORING, HALTING, HALTED, COMPLETED, FAILED or KILLED."),
    ]
    reason: Annotated[str, doc("Stable code of why it has this status; may be empty.")]
    message: Annotated[str, doc("The reason in words; may be empty.")]
    since: Annotated[Time, doc("When it got this status.")]
    pending_reason: Annotated[
        str,
        doc(
            "Why it waits: WaitingForCapacity, WaitingInQueue, TooLargeForCluster, BackOff, Releasing, "
            "WaitingForDisk, PlatformStopping, TenantNotReady or Misconfigured; else empty."
        ),
    ]
    at_rest: Annotated[bool, doc("It has ended or is HALTED, and has released all of its hardware.")]
    desired: Annotated[str, doc("What its owner wants: run, halt or kill.")]
    generation: Annotated[int, doc("Rises by one with every change of what its owner wants; also the ETag.")]
    observed_generation: Annotated[int, doc("The generation that the platform has acted on.")]
    learners: Annotated[int, doc("Number of learners; 0 if the spec cannot be read.")]
    resources: Annotated[ResourceSize, doc("Hardware of all learners together.")]
    framework: Annotated[str, doc("Framework and version, e.g. jax:0.10; empty without one.")]
    attempt: Annotated[JobAttempt, doc("The current or last attempt.")]
    counters: Annotated[JobCounters, doc("Retries, restarts and preemptions up to now.")]
    checkpoint: Annotated[
        JobCheckpoint | None, doc("The checkpoint that was stored last; null before. During a run some seconds old.")
    ]
    verdict: Annotated[JobVerdict | None, doc("The decision that ended the last attempt; null before.")]
    code_digest: Annotated[str, doc("Digest of its code, sha256:<hex>; empty without code.")]
    created: Annotated[Time, doc("When it was submitted.")]
    updated: Annotated[Time, doc("When its document last changed.")]
    finished: Annotated[Time | None, doc("When it reached a final status; null before.")]
    released: Annotated[Time | None, doc("When its hardware was released; null before.")]
    summary: Annotated[dict[str, Any], doc("Metrics and progress as they were when it ended; empty before.")]
    pending_message: Annotated[
        str | UnsetType, doc("Why it waits, in words. Only while it waits and the dispatcher answers.")
    ] = UNSET
    queue_position: Annotated[
        int | UnsetType, doc("Place in the queue, from 1. Only while it waits and the dispatcher answers.")
    ] = UNSET
    deleted: Annotated[
        Time | UnsetType, doc("When it was deleted. Only in replayed answers, and in lists with `deleted`.")
    ] = UNSET
    startup: Annotated[
        list[StartupStep] | UnsetType, doc("The start-up of the current or last attempt, in order. Not in lists.")
    ] = UNSET
    spec: Annotated[dict[str, Any] | UnsetType, doc("The spec in normal form. Not in events of live streams.")] = UNSET
    metrics: Annotated[
        list[JobMetric] | UnsetType,
        doc("The metrics that the request names, one for each name and context. Only with `metrics`."),
    ] = UNSET
    progress: Annotated[
        float | UnsetType, doc("Share of the training that is done, 0 to 1. Only with `progress`, if known.")
    ] = UNSET
    eta_ms: Annotated[
        int | UnsetType, doc("Milliseconds until the training ends, as estimated. Only with `progress`, if known.")
    ] = UNSET
    usage: Annotated[
        list[LearnerUsage] | UnsetType,
        doc("What each learner of the newest attempt uses. Only of one job, with `progress`."),
    ] = UNSET
    warnings: Annotated[list[str] | UnsetType, doc("Warnings to its owner. Only in the answer to a submit.")] = UNSET


class JobEvent(Answer, rename={"from_status": "from"}):
    """One entry of a job's history. It never changes."""

    seq: Annotated[int, doc("Counts the events of the job from 1.")]
    time: Annotated[Time, doc("When it happened.")]
    actor: Annotated[
        str, doc("Origin of the change: user:<name> (user:<tenant>/<name> of another tenant), lcm, guardian.")
    ]
    generation: Annotated[int, doc("Generation of the job at that time.")]
    from_status: Annotated[str | None, doc("Status before; null for the first event.")]
    to: Annotated[str, doc("Status after; RESUMED marks a resume and is followed by QUEUED.")]
    attempt: Annotated[int, doc("Number of the attempt; 0 before the first one.")]
    reason: Annotated[str, doc("Stable code of the reason; may be empty.")]
    message: Annotated[str, doc("The reason in words; may be empty.")]


def job_answer(document: JobDocument, waiting: Waiting | None = None) -> Job:
    """The job as users see it. ``waiting``: what the dispatcher knows about it, if it waits."""
    spec = spec_of(document)
    framework = spec.framework if spec else None
    state = document.state
    return Job(
        id=document.id,
        name=str(document.spec.get("name", "")),
        tenant=document.tenant,
        user=document.user,
        tags=list(document.spec.get("tags", ())),
        status=state.status.value,
        reason=state.reason,
        message=state.message,
        since=as_time(state.since),
        pending_reason=waiting.pending_reason if waiting else state.pending_reason,
        pending_message=waiting.message if waiting else UNSET,
        queue_position=waiting.position if waiting else UNSET,
        at_rest=document.at_rest,
        desired=document.desired.value,
        generation=document.generation,
        observed_generation=document.observed_generation,
        learners=spec.learners if spec else 0,
        resources=total(*_role_sizes(spec)) if spec else total(),
        framework=":".join(filter(None, (framework.name, framework.version))) if framework else "",
        attempt=_attempt(document.attempt),
        counters=JobCounters(
            retries=document.counters.retries,
            restarts=document.counters.restarts,
            preemptions=document.counters.preemptions,
        ),
        checkpoint=_checkpoint(document.checkpoint) if document.checkpoint else None,
        verdict=_verdict(document.verdict) if document.verdict else None,
        code_digest=document.code_digest,
        created=as_time(document.created),
        updated=as_time(document.updated),
        finished=as_time_or_none(document.finished),
        released=as_time_or_none(document.released),
        deleted=UNSET if document.deleted is None else as_time(document.deleted),
        summary=dump(document.summary),
        startup=startup(document),
        spec=dump(document.spec),
    )


def listed(document: JobDocument) -> Rendered:
    """The job without its spec, for lists that are live. Two documents that differ in ``updated`` alone look alike."""
    job = structs.replace(job_answer(document), spec=UNSET, startup=UNSET)
    return Rendered(to_json(job).decode(), hash(to_json(structs.replace(job, updated=Time(0)))))


def event_answer(event: Event) -> JobEvent:
    """The event as users see it."""
    return JobEvent(
        seq=event.seq,
        time=as_time(event.time),
        actor=event.actor,
        generation=event.generation,
        from_status=event.from_status.value if event.from_status else None,
        to=event.to.value,
        attempt=event.attempt,
        reason=event.reason,
        message=event.message,
    )


def size_answer(size: Size, count: int = 1) -> ResourceSize:
    """The hardware of ``count`` learners of this size."""
    return ResourceSize(cpus=size.cpus * count, memory=size.memory * count, gpus=size.gpus * count)


def total(*sizes: ResourceSize) -> ResourceSize:
    """The sum of the sizes."""
    return ResourceSize(
        cpus=sum((size.cpus for size in sizes), 0.0),
        memory=sum(size.memory for size in sizes),
        gpus=sum((size.gpus for size in sizes), 0.0),
    )


def _role_sizes(spec: JobSpec) -> list[ResourceSize]:
    return [size_answer(spec.role_resources(name), role.count) for name, role in spec.roles.items()]


def _attempt(attempt: Attempt) -> JobAttempt:
    return JobAttempt(
        number=attempt.number,
        admitted=as_time_or_none(attempt.admitted),
        started=as_time_or_none(attempt.started),
        committed=attempt.committed,
        placement=dict(attempt.placement),
    )


def _checkpoint(checkpoint: StoredCheckpoint) -> JobCheckpoint:
    return JobCheckpoint(
        time=as_time(checkpoint.time),
        files=checkpoint.files,
        size=checkpoint.size,
        learner=checkpoint.learner,
        attempt=checkpoint.attempt,
    )


def _verdict(verdict: Verdict) -> JobVerdict:
    return JobVerdict(
        to=verdict.to.value,
        reason=verdict.reason,
        message=verdict.message,
        time=as_time(verdict.time),
        learner=verdict.learner,
        exit_code=verdict.exit_code,
        signal=verdict.signal,
    )
