"""The platform over HTTP: version, queue, cluster, use of hardware, frameworks, sizes, quarantine."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from services.api.answers import rfc3339
from services.api.rest.answers import answer
from services.api.rest.csv_text import csv_text
from services.api.rest.openapi import ok
from services.api.rest.permissions import PUBLIC, Operator, Services, Visitor
from services.api.use_cases import platform, usage
from services.api.use_cases.platform import (
    ClusterState,
    GetFrameworksReply,
    GetQuarantineReply,
    GetQueueReply,
    GetSizesReply,
    PlatformVersion,
    StorageParams,
    TenantParams,
    TenantStorage,
)
from services.api.use_cases.usage import GetUsageReply, UsageParams

router = APIRouter(prefix="/v1", tags=["platform"])
_USAGE_COLUMNS: Final = ("since", "until", "tenant", "user", "jobs", "gpu_hours", "cpu_hours")


class UsageQuery(UsageParams):
    """Whose jobs count, when, and how to write the answer."""

    format: Literal["json", "csv"] | None = Field(
        default=None, description="json or csv; default: csv with `Accept: text/csv`, else json."
    )


@router.get("/version", dependencies=[PUBLIC], **ok(PlatformVersion, "What this service is and can do"))
async def get_version() -> Response:
    return answer(platform.get_version())


@router.get("/queue", **ok(GetQueueReply, "Jobs that wait, in the order of the queue"))
async def get_queue(services: Services, principal: Visitor, params: Annotated[TenantParams, Query()]) -> Response:
    return answer(await platform.get_queue(services, principal, params))


@router.get("/cluster", **ok(ClusterState, "Nodes, and the hardware in use"))
async def get_cluster(services: Services, principal: Visitor, params: Annotated[TenantParams, Query()]) -> Response:
    return answer(await platform.get_cluster(services, principal, params))


@router.get("/usage", **ok(GetUsageReply, "GPU-hours and CPU-hours by tenant and user; or a CSV file of them"))
async def get_usage(
    services: Services, principal: Visitor, request: Request, params: Annotated[UsageQuery, Query()]
) -> Response:
    reply = await usage.get_usage(services, principal, params)
    wanted = params.format or ("csv" if "text/csv" in request.headers.get("accept", "") else "json")
    return answer(reply, headers={"Vary": "Accept"}) if wanted == "json" else _usage_file(reply)


@router.get("/storage", **ok(TenantStorage, "What the tenant has in the object store"))
async def get_storage(services: Services, principal: Visitor, params: Annotated[StorageParams, Query()]) -> Response:
    return answer(await platform.get_storage(services, principal, params))


@router.get("/frameworks", **ok(GetFrameworksReply, "What `framework` in a spec may name"))
async def get_frameworks(services: Services, _principal: Visitor) -> Response:
    return answer(platform.get_frameworks(services))


@router.get("/sizes", **ok(GetSizesReply, "What `resources.size` in a spec may name"))
async def get_sizes(_principal: Visitor) -> Response:
    return answer(platform.get_sizes())


@router.get("/quarantine", **ok(GetQuarantineReply, "Stored data that cannot be read, of all services"))
async def get_quarantine(services: Services, _principal: Operator) -> Response:
    return answer(await platform.get_quarantine(services))


def _usage_file(reply: GetUsageReply) -> Response:
    """The answer as a file that names its window, so that those of several months can be joined."""
    since, until = rfc3339(reply.since), rfc3339(reply.until)
    rows = [(since, until, *(getattr(entry, name) for name in _USAGE_COLUMNS[2:])) for entry in reply.users]
    headers = {
        "Content-Disposition": f"attachment; filename=weft-usage-{since[:10]}-{until[:10]}.csv",
        "X-Content-Type-Options": "nosniff",
        "Vary": "Accept",
    }
    return Response(csv_text(_USAGE_COLUMNS, rows), headers=headers, media_type="text/csv; charset=utf-8")
