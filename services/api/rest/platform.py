"""What the platform is, has and offers."""

from __future__ import annotations

from fastapi import APIRouter, Response

from services.api import use_cases
from services.api.rest.answers import answer
from services.api.rest.openapi import ok
from services.api.rest.permissions import PUBLIC, Operator, Services, Visitor
from services.api.schemas import ClusterJson, FrameworksJson, QuarantineJson, QueueJson, SizesJson, VersionJson

router = APIRouter(prefix="/v1", tags=["platform"])


@router.get("/version", dependencies=[PUBLIC], **ok(VersionJson, "What this service is and can"))
async def get_version() -> Response:
    return answer(use_cases.get_version())


@router.get("/queue", **ok(QueueJson, "Jobs that wait, first in line first"))
async def get_queue(services: Services, principal: Visitor, tenant: str | None = None) -> Response:
    return answer(await use_cases.get_queue(services, principal, tenant))


@router.get("/cluster", **ok(ClusterJson, "Nodes, and what is in use"))
async def get_cluster(services: Services, principal: Visitor, tenant: str | None = None) -> Response:
    return answer(await use_cases.get_cluster(services, principal, tenant))


@router.get("/frameworks", **ok(FrameworksJson, "What a spec's `framework` may name"))
async def get_frameworks(_who: Visitor) -> Response:
    return answer(use_cases.get_frameworks())


@router.get("/sizes", **ok(SizesJson, "What `resources.size` may name"))
async def get_sizes(_who: Visitor) -> Response:
    return answer(use_cases.get_sizes())


@router.get("/quarantine", **ok(QuarantineJson, "What cannot be read and is left alone, of all services"))
async def get_quarantine(services: Services, _who: Operator) -> Response:
    return answer(await use_cases.get_quarantine(services))
