"""The application: every router, the handlers of errors, and the authentication around them."""

from __future__ import annotations

from typing import Any

import structlog
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from services.api.params import invalid_params
from services.api.rest import (
    artifacts,
    compare,
    dashboard,
    jobs,
    keys,
    platform,
    sessions,
    stream,
    submission,
    telemetry,
    tenant_secrets,
)
from services.api.rest.answers import answer, error_response, http_error_response
from services.api.rest.auth_middleware import HANDLED, AuthMiddleware, PublicRoutes, trace_id_of
from services.api.rest.openapi import document
from services.api.rest.origins import Origins
from services.api.rest.permissions import PUBLIC, public_routes, routes_of
from services.api.services import ApiServices
from services.api.use_cases.platform import VERSION
from services.core.domain.errors import Internal, NotFound, WeftError

log = structlog.get_logger()


def create_app(services: ApiServices) -> ASGIApp:
    """The application that a server runs."""
    app = create_routes()
    app.state.services = services
    public = PublicRoutes(
        [(method, route.path_regex) for route in public_routes(app) for method in route.methods or ()]
    )
    return AuthMiddleware(app, services, Origins.of(services.settings), public)


def create_routes() -> FastAPI:
    """The routes without services and authentication, for ``create_app`` and for the OpenAPI document."""
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
            RequestValidationError: _invalid_request,
            HTTPException: _http_error,
            ClientDisconnect: _disconnected,
            Exception: _unexpected_error,
        },
    )
    modules = (submission, jobs, compare, telemetry, stream, artifacts)
    for module in (*modules, keys, tenant_secrets, sessions, platform, dashboard):
        app.include_router(module.router)
    app.include_router(_openapi_router(app))
    return app


def _openapi_router(app: FastAPI) -> APIRouter:
    router = APIRouter()
    cached: list[dict[str, Any]] = []

    @router.get("/openapi.json", dependencies=[PUBLIC], include_in_schema=False)
    async def get_openapi() -> Response:
        if not cached:
            cached.append(document(app))
        return answer(cached[0])

    return router


async def _weft_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, WeftError):
        raise error
    return error_response(error, trace_id_of(request.scope))


async def _invalid_request(request: Request, error: Exception) -> Response:
    """FastAPI's own handler would repeat what was sent, and fails if that is not JSON."""
    if not isinstance(error, RequestValidationError):
        raise error
    return error_response(invalid_params(error.errors()), trace_id_of(request.scope))


async def _http_error(request: Request, error: Exception) -> Response:
    """An unknown path, or a method that the path does not have."""
    if not isinstance(error, HTTPException):
        raise error
    trace_id = trace_id_of(request.scope)
    if error.status_code == 404:
        return error_response(NotFound("there is nothing at this path; see /openapi.json"), trace_id)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # the router names only the methods of the first route of this path
        path = request.scope["path"]
        routes = [route for route in routes_of(request.app) if route.path_regex.match(path)]
        headers["Allow"] = ", ".join(sorted({method for route in routes for method in route.methods or ()}))
    return http_error_response(error.status_code, trace_id, headers)


async def _disconnected(_request: Request, _error: Exception) -> Response:
    """Never sent: the client is gone. The status is for the metrics."""
    return Response(status_code=499)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    log.error("request.failed", path=request.url.path, exc_info=error)
    request.scope[HANDLED] = True
    return error_response(Internal("an internal error; the service's log has its trace"), trace_id_of(request.scope))
