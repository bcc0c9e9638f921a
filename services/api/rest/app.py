"""The application: every router, one way to fail, and the gate before all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from services.api.rest import artifacts, jobs, keys, platform, submission, telemetry
from services.api.rest.answers import answer, http_refusal, refusal
from services.api.rest.auth_middleware import HANDLED, AuthMiddleware, trace_id_of
from services.api.rest.openapi import document
from services.api.rest.permissions import PUBLIC, public_paths, routes_of
from services.api.services import ApiServices
from services.api.use_cases import VERSION
from services.core.domain.errors import FieldError, Internal, InvalidRequest, NotFound, WeftError

log = structlog.get_logger()


def create_app(gateway: ApiServices) -> ASGIApp:
    """What a server runs."""
    app = create_routes(gateway)
    return AuthMiddleware(app, keys=gateway.keys, instrumentation=gateway.instrumentation, public=public_paths(app))


def create_routes(gateway: ApiServices) -> FastAPI:
    """The routes without the gate; nobody is let in here without it."""
    app = FastAPI(
        title="Weft",
        version=VERSION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
        exception_handlers={
            WeftError: _weft_error,
            RequestValidationError: _invalid,
            HTTPException: _http_error,
            ClientDisconnect: _gone,
            Exception: _crashed,
        },
    )
    app.state.gateway = gateway
    for each in (submission, jobs, telemetry, artifacts, keys, platform):
        app.include_router(each.router)
    app.include_router(_openapi(app))
    return app


def _openapi(app: FastAPI) -> APIRouter:
    router = APIRouter()
    cached: list[dict[str, Any]] = []

    @router.get("/openapi.json", dependencies=[PUBLIC], include_in_schema=False)
    async def get_openapi() -> Response:
        if not cached:
            cached.append(document(app, public=public_paths(app)))
        return answer(cached[0])

    return router


async def _weft_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, WeftError):
        raise error
    return refusal(error, trace_id_of(request.scope))


async def _invalid(request: Request, error: Exception) -> Response:
    """FastAPI's own answer would repeat what was sent, and fails where that is not JSON."""
    if not isinstance(error, RequestValidationError):
        raise error
    found = tuple(FieldError(_pointer(one), str(one["msg"])) for one in error.errors())
    first = found[0]
    return refusal(
        InvalidRequest(f"{first.pointer.rpartition('/')[2]}: {first.message}", errors=found), trace_id_of(request.scope)
    )


def _pointer(error: Mapping[str, Any]) -> str:
    return "".join(f"/{part}" for part in error["loc"])


async def _http_error(request: Request, error: Exception) -> Response:
    """A path that is none, or that has no such method."""
    if not isinstance(error, HTTPException):
        raise error
    trace_id = trace_id_of(request.scope)
    if error.status_code == 404:
        return refusal(NotFound("there is nothing at this path; see /openapi.json"), trace_id)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # the router names the methods of the first route that has this path only
        path = request.scope["path"]
        routes = [route for route in routes_of(request.app) if route.path_regex.match(path)]
        headers["Allow"] = ", ".join(sorted({method for route in routes for method in route.methods or ()}))
    return http_refusal(error.status_code, trace_id, headers)


async def _gone(_request: Request, _error: Exception) -> Response:
    """Nobody reads this; it is for the figures."""
    return Response(status_code=499)


async def _crashed(request: Request, error: Exception) -> Response:
    log.error("api.failed", path=request.url.path, exc_info=error)
    request.scope[HANDLED] = True
    return refusal(Internal("an internal error; the service's log has its trace"), trace_id_of(request.scope))
