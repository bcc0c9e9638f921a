"""What the platform is, has and offers."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

from fastapi import APIRouter, Response

from services.api.rest.answers import answer
from services.api.rest.openapi import ok
from services.api.rest.permissions import PUBLIC, Uses, Visitor
from services.api.shapes import ClusterJson, FrameworksJson, QueueJson, SizesJson, VersionJson
from services.api.writing import cluster_json, framework_json, size_json, waiting_json
from services.core.domain.sizes import SIZES
from services.core.domain.status import Status
from services.core.frameworks import library
from services.core.ports.job_store import JobQuery

router = APIRouter(prefix="/v1", tags=["platform"])
VERSION: Final = version("weft-platform")
CAPABILITIES: Final = (
    "artifacts.ranges", "jobs.code_digest", "jobs.dry_run", "jobs.events", "jobs.idempotency", "keys", "logs.follow",
    "logs.search", "metrics.follow", "metrics.series",
)  # fmt: skip
_MOST_WAITING: Final = 1000


@router.get("/version", dependencies=[PUBLIC], **ok(VersionJson, "What this service is and can"))
async def get_version() -> Response:
    return answer({"version": VERSION, "api": "v1", "capabilities": CAPABILITIES})


@router.get("/queue", **ok(QueueJson, "Jobs that wait, first in line first"))
async def get_queue(uses: Uses, who: Visitor, tenant: str | None = None) -> Response:
    query = JobQuery(tenant=who.listed_tenant(tenant), statuses=(Status.QUEUED,))
    jobs = await uses.jobs.waiting(query, limit=_MOST_WAITING)
    waiting = await uses.platform.waiting() if jobs else {}
    shown = [waiting_json(job, waiting.get(job.id)) for job in jobs]
    shown.sort(key=lambda one: one.get("position", 2**31))
    return answer({"waiting": shown})


@router.get("/cluster", **ok(ClusterJson, "Nodes, and what is in use"))
async def get_cluster(uses: Uses, who: Visitor, tenant: str | None = None) -> Response:
    return answer(cluster_json(await uses.platform.cluster(who.listed_tenant(tenant))))


@router.get("/frameworks", **ok(FrameworksJson, "What a spec's `framework` may name"))
async def get_frameworks(_who: Visitor) -> Response:
    return answer({"frameworks": [framework_json(entry) for entry in library()]})


@router.get("/sizes", **ok(SizesJson, "What `resources.size` may name"))
async def get_sizes(_who: Visitor) -> Response:
    return answer({"sizes": [{"name": name, **size_json(size)} for name, size in SIZES.items()]})
