"""Comparing jobs over HTTP: statistics over groups, and the differences of two jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from services.api.rest.answers import answer
from services.api.rest.disconnects import while_connected
from services.api.rest.openapi import ok
from services.api.rest.permissions import Reader, Services
from services.api.use_cases import compare
from services.api.use_cases.compare import DiffParams, JobDifference, StatisticsParams, StatisticsReply

router = APIRouter(prefix="/v1", tags=["jobs"])


@router.get("/statistics", **ok(StatisticsReply, "Statistics of a metric over jobs, by step"))
async def get_statistics(
    services: Services, principal: Reader, request: Request, params: Annotated[StatisticsParams, Query()]
) -> Response:
    return answer(await while_connected(request, compare.get_statistics(services, principal, params)))


@router.get("/diff", **ok(JobDifference, "How two jobs differ"))
async def diff_jobs(services: Services, principal: Reader, params: Annotated[DiffParams, Query()]) -> Response:
    return answer(await compare.diff_jobs(services, principal, params))
