"""What the platform is, has and offers."""

from __future__ import annotations

from fastapi import APIRouter, Response

from services.api import actions
from services.api.rest.answers import answer
from services.api.rest.openapi import ok
from services.api.rest.permissions import PUBLIC, Operator, Uses, Visitor
from services.api.shapes import ClusterJson, FrameworksJson, QuarantineJson, QueueJson, SizesJson, VersionJson

router = APIRouter(prefix="/v1", tags=["platform"])


@router.get("/version", dependencies=[PUBLIC], **ok(VersionJson, "What this service is and can"))
async def get_version() -> Response:
    return answer(actions.get_version())


@router.get("/queue", **ok(QueueJson, "Jobs that wait, first in line first"))
async def get_queue(uses: Uses, who: Visitor, tenant: str | None = None) -> Response:
    return answer(await actions.get_queue(uses, who, tenant))


@router.get("/cluster", **ok(ClusterJson, "Nodes, and what is in use"))
async def get_cluster(uses: Uses, who: Visitor, tenant: str | None = None) -> Response:
    return answer(await actions.get_cluster(uses, who, tenant))


@router.get("/frameworks", **ok(FrameworksJson, "What a spec's `framework` may name"))
async def get_frameworks(_who: Visitor) -> Response:
    return answer(actions.get_frameworks())


@router.get("/sizes", **ok(SizesJson, "What `resources.size` may name"))
async def get_sizes(_who: Visitor) -> Response:
    return answer(actions.get_sizes())


@router.get("/quarantine", **ok(QuarantineJson, "What cannot be read and is left alone, of all services"))
async def get_quarantine(uses: Uses, _who: Operator) -> Response:
    return answer(await actions.get_quarantine(uses))
