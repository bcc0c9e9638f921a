"""The permission of each route, declared where the route is: ``principal: Reader`` or ``dependencies=[PUBLIC]``.

A route without a declaration cannot be reached without a key, and fails the test that walks the app.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute, iter_route_contexts

from services.api.access import Permission, Principal
from services.api.rest.auth_middleware import PRINCIPAL
from services.api.services import ApiServices
from services.core.domain.errors import Internal

_PERMISSION: Final = "weft_permission"
_PUBLIC: Final = "public"


def requires(permission: Permission) -> Any:
    """A dependency: the caller, who has this permission. Raises PermissionDenied for others."""

    async def check(request: Request) -> Principal:
        principal = request.scope[PRINCIPAL]
        assert isinstance(principal, Principal)  # noqa: S101 - set by AuthMiddleware on every path that is not public
        principal.require(permission)
        return principal

    setattr(check, _PERMISSION, permission)
    return Depends(check)


async def _no_permission() -> None: ...


setattr(_no_permission, _PERMISSION, _PUBLIC)
PUBLIC: Final = Depends(_no_permission)

Reader = Annotated[Principal, requires("jobs:read")]
Writer = Annotated[Principal, requires("jobs:write")]
KeyReader = Annotated[Principal, requires("keys:read")]
KeyWriter = Annotated[Principal, requires("keys:write")]
SecretReader = Annotated[Principal, requires("secrets:read")]
SecretWriter = Annotated[Principal, requires("secrets:write")]
Visitor = Annotated[Principal, requires("platform:read")]
Operator = Annotated[Principal, requires("platform:operate")]


def permission_of(route: APIRoute) -> str | None:
    """The declared permission; None if there is none."""
    declared = [getattr(dependency.call, _PERMISSION, None) for dependency in route.dependant.dependencies]
    return next((permission for permission in declared if permission is not None), None)


def routes_of(app: FastAPI) -> Iterator[APIRoute]:
    """Every route of the app. Raises Internal for a route that cannot declare a permission, e.g. a mounted app."""
    for context in iter_route_contexts(app.routes):
        route = getattr(context, "original_route", context)
        if not isinstance(route, APIRoute):
            raise Internal(f"{route!r} is no APIRoute and declares no permission")
        yield route


def public_routes(app: FastAPI) -> list[APIRoute]:
    """The routes that need no credential."""
    return [route for route in routes_of(app) if permission_of(route) == _PUBLIC]


def _services(request: Request) -> ApiServices:
    services = request.app.state.services
    assert isinstance(services, ApiServices)  # noqa: S101 - set by create_app
    return services


Services = Annotated[ApiServices, Depends(_services)]
