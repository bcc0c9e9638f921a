"""The platform: version, queue, cluster, frameworks, sizes, quarantine."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Annotated, Final

from msgspec import UNSET, UnsetType
from pydantic import Field

from services.api.access import Principal
from services.api.answers import Answer, Time, as_time, doc
from services.api.clients import Waiting
from services.api.framework_answer import FrameworkEntry, framework_answer
from services.api.gpu_use import GpuUse
from services.api.job_answer import ResourceSize, size_answer, total
from services.api.params import Params
from services.api.services import ApiServices
from services.core.domain.job import Job
from services.core.domain.sizes import SIZES, Size
from services.core.domain.status import Status
from services.core.frameworks import library
from services.core.ports.cluster import Node
from services.core.ports.job_store import JobQuery

VERSION: Final = version("weft-platform")
CAPABILITIES: Final = (
    "artifacts.ranges",
    "jobs.code_digest",
    "jobs.dry_run",
    "jobs.events",
    "jobs.idempotency",
    "keys",
    "logs.follow",
    "logs.search",
    "metrics.follow",
    "metrics.series",
)
_MOST_WAITING: Final = 1000
_LAST_POSITION: Final = 2**31
TENANT: Final = "Tenant whose jobs count; default: the caller's. Admins: any, or * for all."


class TenantParams(Params):
    """Whose jobs count."""

    tenant: str | None = Field(default=None, description=TENANT)


class StorageParams(Params):
    """Whose objects count."""

    tenant: str | None = Field(
        default=None, description="Tenant whose objects count; default: the caller's. Admins: any."
    )


class PlatformVersion(Answer):
    """What this service is and can do."""

    version: Annotated[str, doc("Version of Weft.")]
    api: Annotated[str, doc("Version of the API: v1.")]
    capabilities: Annotated[list[str], doc("Optional features of this server.")]


class WaitingJob(Answer):
    """A job in the queue."""

    id: Annotated[str, doc("Id of the job.")]
    name: Annotated[str, doc("Name from its spec.")]
    tenant: Annotated[str, doc("Tenant that it belongs to.")]
    user: Annotated[str, doc("User who submitted it.")]
    created: Annotated[Time, doc("When it was submitted.")]
    pending_reason: Annotated[str, doc("Stable code of why it waits; may be empty.")]
    message: Annotated[str, doc("Why it waits, in words; may be empty.")]
    position: Annotated[int | UnsetType, doc("Place in the queue, from 1. Only while the dispatcher answers.")] = UNSET


class GetQueueReply(Answer):
    """The queue."""

    waiting: Annotated[list[WaitingJob], doc("Jobs that wait, in the order of the queue; at most 1000.")]


class ClusterNode(Answer):
    """A node of the cluster."""

    name: Annotated[str, doc("Name of the node.")]
    cpus: Annotated[float, doc("CPU cores for learners.")]
    memory: Annotated[int, doc("Bytes of memory for learners.")]
    gpus: Annotated[float, doc("GPUs for learners.")]
    gpu_type: Annotated[str, doc("Model of its GPUs; empty without any.")]
    ready: Annotated[bool, doc("It can run learners now.")]
    devices: Annotated[dict[str, int], doc("Other devices for learners, e.g. rdma/hca: name of the resource -> count.")]
    used: Annotated[ResourceSize, doc("Hardware of it that jobs of all tenants hold.")]


class ClusterState(Answer):
    """The cluster and its use. What only the cluster knows is left out while it does not answer."""

    jobs: Annotated[dict[str, int], doc("Number of jobs by status.")]
    gpu_idle_s: Annotated[float, doc("Seconds for which GPUs were not in use that count as idle.")]
    used: Annotated[ResourceSize | UnsetType, doc("Hardware that jobs hold. Only while the lcm service answers.")] = (
        UNSET
    )
    nodes: Annotated[list[ClusterNode] | UnsetType, doc("All nodes. Only while the cluster answers.")] = UNSET
    isolation: Annotated[
        str | UnsetType,
        doc("How learners are isolated: sandbox, process, trusted or pod. Only while the cluster answers."),
    ] = UNSET
    enforced: Annotated[
        list[str] | UnsetType,
        doc("Limits of learners that the kernel enforces, of memory, pids and cpu. Only where this is known."),
    ] = UNSET
    total: Annotated[ResourceSize | UnsetType, doc("Hardware of all ready nodes. Only with `nodes`.")] = UNSET
    gpu_jobs: Annotated[
        list[GpuUse] | UnsetType,
        doc(
            "Jobs that train with GPUs, at most 500, and what they use of them; those with most idle GPUs first. Only "
            "while the metrics service answers."
        ),
    ] = UNSET


class TenantStorage(Answer):
    """What a tenant has in the object store; at most a minute old."""

    tenant: Annotated[str, doc("Tenant that it belongs to.")]
    bytes: Annotated[int, doc("Size of all its objects, in bytes. Deleted jobs count until their data is erased.")]
    objects: Annotated[int, doc("Number of its objects.")]
    kinds: Annotated[dict[str, int], doc("Bytes by kind: code, results, logs, checkpoints, other.")]
    measured: Annotated[Time, doc("When it was measured.")]
    complete: Annotated[bool, doc("False: it took too long to count, and there is more.")]


class GetFrameworksReply(Answer):
    """The framework library."""

    frameworks: Annotated[list[FrameworkEntry], doc("What `framework` in a spec may name.")]


class NamedSize(Answer):
    """A size that a spec may name."""

    name: Annotated[str, doc("Name of the size.")]
    cpus: Annotated[float, doc("CPU cores of each learner.")]
    memory: Annotated[int, doc("Bytes of memory of each learner.")]
    gpus: Annotated[float, doc("GPUs of each learner.")]


class GetSizesReply(Answer):
    """Named sizes of learners."""

    sizes: Annotated[list[NamedSize], doc("What `resources.size` in a spec may name.")]


class HeldObject(Answer):
    """Stored data that cannot be read. It is left alone until an operator repairs it."""

    service: Annotated[str, doc("Service that found it.")]
    kind: Annotated[str, doc("job, status, learner, metrics or record.")]
    place: Annotated[str, doc("Where it is stored: a job's id, a key of the status store, a path.")]
    reason: Annotated[str, doc("What is wrong with it.")]
    since: Annotated[Time, doc("When the service first found it damaged.")]
    job: Annotated[str, doc("Id of the job that is affected; empty if none is, or none is known.")]
    advice: Annotated[str, doc("What an operator can do; may be empty.")]


class GetQuarantineReply(Answer):
    """Stored data that cannot be read, of all services."""

    held: Annotated[list[HeldObject], doc("Damaged data.")]
    silent: Annotated[list[str], doc("Services that did not answer; their findings are missing here.")]


def get_version() -> PlatformVersion:
    """What this service is and can do."""
    return PlatformVersion(version=VERSION, api="v1", capabilities=list(CAPABILITIES))


async def get_queue(services: ApiServices, principal: Principal, params: TenantParams) -> GetQueueReply:
    """Jobs that wait, in the order of the queue."""
    query = JobQuery(tenant=principal.listed_tenant(params.tenant), statuses=(Status.QUEUED,))
    jobs = await services.jobs.waiting(query, limit=_MOST_WAITING)
    positions = await services.platform.waiting([job.id for job in jobs]) if jobs else {}
    waiting = [_waiting(job, positions.get(job.id)) for job in jobs]
    waiting.sort(key=lambda job: _LAST_POSITION if job.position is UNSET else job.position)
    return GetQueueReply(waiting=waiting)


async def get_cluster(services: ApiServices, principal: Principal, params: TenantParams) -> ClusterState:
    """Nodes, and the hardware in use."""
    tenant = principal.listed_tenant(params.tenant)
    state, in_use = await asyncio.gather(services.platform.cluster(tenant), services.gpu_uses.of(tenant))
    jobs = {status.value: count for status, count in state.jobs.items()}
    gpu_jobs, gpu_idle_s = UNSET if in_use is None else list(in_use), services.gpu_uses.window_s
    if state.nodes is None or state.isolation is None or state.used is None:
        return ClusterState(jobs=jobs, gpu_jobs=gpu_jobs, gpu_idle_s=gpu_idle_s)
    nodes = [_node(node, state.used[node.name]) for node in state.nodes]
    ready = (ResourceSize(cpus=node.cpus, memory=node.memory, gpus=node.gpus) for node in nodes if node.ready)
    return ClusterState(
        nodes=nodes,
        isolation=state.isolation,
        total=total(*ready),
        used=total(*(node.used for node in nodes)),
        jobs=jobs,
        enforced=UNSET if state.enforced is None else list(state.enforced),
        gpu_jobs=gpu_jobs,
        gpu_idle_s=gpu_idle_s,
    )


async def get_storage(services: ApiServices, principal: Principal, params: StorageParams) -> TenantStorage:
    """What a tenant has in the object store. Raises PermissionDenied, Unavailable."""
    tenant = principal.acting_tenant(params.tenant)
    usage = await services.storage.of(tenant)
    return TenantStorage(
        tenant=tenant,
        bytes=usage.bytes,
        objects=usage.objects,
        kinds=usage.size,
        measured=as_time(usage.measured),
        complete=usage.complete,
    )


def get_frameworks(services: ApiServices) -> GetFrameworksReply:
    """What `framework` in a spec may name."""
    return GetFrameworksReply(frameworks=[framework_answer(entry, services.library_images) for entry in library()])


def get_sizes() -> GetSizesReply:
    """What `resources.size` in a spec may name."""
    return GetSizesReply(
        sizes=[NamedSize(name=name, cpus=size.cpus, memory=size.memory, gpus=size.gpus) for name, size in SIZES.items()]
    )


async def get_quarantine(services: ApiServices) -> GetQuarantineReply:
    """Stored data that cannot be read, of all services."""
    quarantined = await services.platform.quarantined()
    return GetQuarantineReply(
        held=[
            HeldObject(
                service=service,
                kind=held.kind,
                place=held.place,
                reason=held.reason,
                since=as_time(held.since),
                job=held.job,
                advice=held.advice,
            )
            for service, held in quarantined.held
        ],
        silent=list(quarantined.silent),
    )


def _waiting(job: Job, waiting: Waiting | None) -> WaitingJob:
    return WaitingJob(
        id=job.id,
        name=str(job.spec.get("name", "")),
        tenant=job.tenant,
        user=job.user,
        created=as_time(job.created),
        position=waiting.position if waiting else UNSET,
        pending_reason=waiting.pending_reason if waiting else job.state.pending_reason,
        message=waiting.message if waiting else "",
    )


def _node(node: Node, used: Size) -> ClusterNode:
    return ClusterNode(
        name=node.name,
        cpus=node.cpus,
        memory=node.memory,
        gpus=float(node.gpus),
        gpu_type=node.gpu_type,
        ready=node.ready,
        devices=dict(node.devices),
        used=size_answer(used),
    )
