"""Submitting a job, copying one, and planning one without making it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import ConfigDict, Field

from services.api.access import Principal
from services.api.answers import Answer, Done, doc
from services.api.framework_answer import FrameworkEntry, framework_answer
from services.api.job_answer import Job, ResourceSize, job_answer, size_answer, total
from services.api.params import Params
from services.api.services import ApiServices
from services.api.spec_fields import with_fields
from services.api.submit import Plan, check_code, check_devices, check_gang, check_image, read_spec_in_thread
from services.api.uploads import Code, Upload
from services.core.domain.errors import NoSpace, TooLarge
from services.core.domain.job import Job as JobDocument
from services.core.domain.spec import JobSpec, dump_spec
from services.core.frameworks.images import LibraryImages


@dataclass(slots=True)
class Incoming:
    """A received submission: its spec is valid, its code, if any, is in the spool or named by its digest."""

    spec: JobSpec
    code_digest: str = ""
    upload: Upload | None = None
    source: JobDocument | None = None
    """The job that is copied; it may be deleted."""


class CloneParams(Params):
    """What the copy of a job has in place of the job's."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_max_length=None)  # a value may be a long command
    name: str | None = Field(default=None, max_length=1_000, description="Name of the copy; default: the job's.")
    set: dict[str, Any] = Field(
        default={},
        description="Dotted path of a field of the spec, e.g. env.SEED -> its value; null removes the field. "
        "At most 1000 fields.",
    )


class RoleNeeds(Answer):
    """What one role of a job needs."""

    count: Annotated[int, doc("Number of its learners.")]
    cpus: Annotated[float, doc("CPU cores of each learner.")]
    memory: Annotated[int, doc("Bytes of memory of each learner.")]
    gpus: Annotated[float, doc("GPUs of each learner.")]


class JobNeeds(Answer):
    """What a job needs."""

    total: Annotated[ResourceSize, doc("Hardware of all learners together.")]
    roles: Annotated[dict[str, RoleNeeds], doc("Needs of each role, by its name.")]


class PlannedCode(Answer):
    """The code of a planned job."""

    digest: Annotated[str, doc("sha256:<hex>.")]
    stored: Annotated[bool, doc("The tenant has uploaded it before: a submit may name it by its digest.")]


class SubmitLimits(Answer):
    """What a submit may send at most."""

    max_code_bytes: Annotated[int, doc("Largest code archive, in bytes.")]
    max_spec_bytes: Annotated[int, doc("Longest text of a spec, in bytes.")]


class JobPlan(Answer):
    """What a submit would do."""

    dry_run: Annotated[bool, doc("Always true.")]
    spec: Annotated[dict[str, Any], doc("The spec in normal form; defaults are left out.")]
    learners: Annotated[int, doc("Number of learners.")]
    resources: Annotated[JobNeeds, doc("Hardware that it needs.")]
    framework: Annotated[FrameworkEntry | None, doc("Environment that it runs in; null without one.")]
    fits: Annotated[str, doc("Whether the cluster can run it: now, later, never or unknown.")]
    fits_message: Annotated[str, doc("Why, in words; may be empty.")]
    code: Annotated[PlannedCode | None, doc("Its code; null without one.")]
    limits: Annotated[SubmitLimits, doc("What a submit may send at most.")]
    warnings: Annotated[list[str], doc("What its owner should know.")]


async def submit_job(
    services: ApiServices, principal: Principal, tenant: str, incoming: Incoming, *, key: str | None, trace: str
) -> Done[Job]:
    """Makes the job. It and its code are durable when this returns. A job that exists under the key is the answer
    before anything is checked that may have changed since, or stored.

    ``key``: the idempotency key. ``trace``: a W3C traceparent. Raises InvalidArchive, InvalidRequest, InvalidSpec,
    IdempotencyMismatch, NoSpace, TooLarge, Unavailable; NotFound if the source of a copy is deleted.
    """
    code = await _finish_upload(services, incoming)
    submissions = services.submissions
    submitted = await submissions.replay(principal, tenant, incoming.spec, code_digest=incoming.code_digest, key=key)
    if submitted is None:
        if incoming.source is not None:
            principal.visible(incoming.source, incoming.source.id)
        await _check(services, tenant, incoming, code)
        await _keep_code(services, tenant, incoming)
        submitted = await submissions.submit(
            principal, tenant, incoming.spec, code_digest=incoming.code_digest, key=key, trace=trace
        )
    return Done(replace(job_answer(submitted.job), warnings=list(submitted.warnings)), submitted.replayed)


async def clone_job(
    services: ApiServices, principal: Principal, job_id: str, params: CloneParams, *, key: str | None, trace: str
) -> Done[Job]:
    """Makes a job with the spec and code of another one, in its tenant. Errors as of ``submit_job``, and NotFound.

    A repetition is answered although the source was deleted meanwhile.
    """
    tenant, incoming = await _cloned(services, principal, job_id, params, deleted=key is not None)
    return await submit_job(services, principal, tenant, incoming, key=key, trace=trace)


async def plan_clone(services: ApiServices, principal: Principal, job_id: str, params: CloneParams) -> JobPlan:
    """What ``clone_job`` would do; changes nothing."""
    tenant, incoming = await _cloned(services, principal, job_id, params)
    return await plan_job(services, tenant, incoming)


async def _cloned(
    services: ApiServices, principal: Principal, job_id: str, params: CloneParams, *, deleted: bool = False
) -> tuple[str, Incoming]:
    """The tenant and the copy. ``deleted``: also of a deleted job."""
    job = await services.jobs.get(principal, job_id, deleted=deleted)
    changes = {**params.set, **({"name": params.name} if params.name is not None else {})}
    text = json.dumps(with_fields(job.spec, changes)).encode()
    if len(text) > services.settings.max_spec_bytes:
        raise TooLarge(f"a spec has at most {services.settings.max_spec_bytes} bytes")
    spec = await read_spec_in_thread(text, "json", services.settings.cluster)
    return job.tenant, Incoming(spec, code_digest=job.code_digest, source=job)


async def plan_job(services: ApiServices, tenant: str, incoming: Incoming) -> JobPlan:
    """What a submit would do; changes nothing."""
    code = await _finish_upload(services, incoming)
    await _check(services, tenant, incoming, code)
    plan = await services.submissions.plan(tenant, incoming.spec, incoming.code_digest)
    settings = services.settings
    limits = SubmitLimits(max_code_bytes=settings.max_code_bytes, max_spec_bytes=settings.max_spec_bytes)
    return _plan_answer(plan, limits, services.library_images)


async def _finish_upload(services: ApiServices, incoming: Incoming) -> Code | None:
    """Checks the archive, and sets the digest of the code; None without an upload."""
    if incoming.upload is None:
        return None
    with services.instrumentation.counting_refused_code():
        code = await incoming.upload.finish()
    incoming.code_digest = code.digest
    return code


async def _check(services: ApiServices, tenant: str, incoming: Incoming, code: Code | None) -> None:
    """Raises InvalidSpec for a spec or code that this platform does not run now."""
    limits = services.settings
    check_gang(incoming.spec, max_learners=limits.max_learners, max_bytes=limits.max_gang_bytes)
    check_image(incoming.spec, services.library_images)
    check_devices(incoming.spec, services.devices)
    await services.secrets.check_spec(tenant, incoming.spec)
    if code is not None:
        check_code(code, limits.cluster)


async def _keep_code(services: ApiServices, tenant: str, incoming: Incoming) -> None:
    """Stores the uploaded code, or checks that the named code is stored. Raises NoSpace beyond the tenant's bound."""
    with services.instrumentation.counting_refused_code():
        if incoming.upload is None:
            await services.storage_bound.check(tenant)
            if incoming.code_digest:
                await services.submissions.check_code_is_stored(tenant, incoming.code_digest)
            return
        try:
            await services.storage_bound.check(tenant, incoming.upload.size)
        except NoSpace:
            if not await services.submissions.is_code_stored(tenant, incoming.code_digest):
                raise
            await services.storage_bound.check(tenant)  # code that is stored adds no bytes
        if await services.submissions.keep_code(incoming.upload, tenant, incoming.code_digest):
            await services.storage_bound.add(tenant, incoming.upload.size)


def _plan_answer(plan: Plan, limits: SubmitLimits, images: LibraryImages | None) -> JobPlan:
    roles = {
        name: RoleNeeds(count=role.count, cpus=role.size.cpus, memory=role.size.memory, gpus=role.size.gpus)
        for name, role in plan.roles.items()
    }
    return JobPlan(
        dry_run=True,
        spec=dump_spec(plan.spec),
        learners=plan.spec.learners,
        resources=JobNeeds(
            total=total(*(size_answer(role.size, role.count) for role in plan.roles.values())), roles=roles
        ),
        framework=framework_answer(plan.framework, images) if plan.framework else None,
        fits=plan.fit.verdict,
        fits_message=plan.fit.message,
        code=PlannedCode(digest=plan.code_digest, stored=plan.code_stored) if plan.code_digest else None,
        limits=limits,
        warnings=list(plan.warnings),
    )
