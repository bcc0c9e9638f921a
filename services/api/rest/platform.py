"""The platform over HTTP: version, queue, cluster, frameworks, sizes, quarantine."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from services.api.rest.answers import answer
from services.api.rest.openapi import ok
from services.api.rest.permissions import PUBLIC, Operator, Services, Visitor
from services.api.use_cases import platform
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

router = APIRouter(prefix="/v1", tags=["platform"])


@router.get("/version", dependencies=[PUBLIC], **ok(PlatformVersion, "What this service is and can do"))
async def get_version() -> Response:
    return answer(platform.get_version())


@router.get("/queue", **ok(GetQueueReply, "Jobs that wait, in the order of the queue"))
async def get_queue(services: Services, principal: Visitor, params: Annotated[TenantParams, Query()]) -> Response:
    return answer(await platform.get_queue(services, principal, params))


@router.get("/cluster", **ok(ClusterState, "Nodes, and the hardware in use"))
async def get_cluster(services: Services, principal: Visitor, params: Annotated[TenantParams, Query()]) -> Response:
    return answer(await platform.get_cluster(services, principal, params))


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
