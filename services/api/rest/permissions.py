"""What each route demands, declared where the route is: ``who: Reader`` or ``dependencies=[PUBLIC]``.

A route that declares nothing cannot be reached (the gate asks for a key) and fails the test that walks the app.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute, iter_route_contexts

from services.api.access import Permission, Principal
from services.api.rest.auth_middleware import PRINCIPAL
from services.api.services import ApiServices
from services.core.domain.errors import Internal, PermissionDenied, Unauthenticated

_MARK: Final = "weft_permission"
_PUBLIC: Final = "public"


def requires(permission: Permission) -> Any:
    """A dependency: the principal, who has this permission. PermissionDenied for others."""

    async def check(request: Request) -> Principal:
        principal = request.scope.get(PRINCIPAL)
        if not isinstance(principal, Principal):
            raise Unauthenticated("this needs a key: send `Authorization: Bearer weft_...`")
        if not principal.allows(permission):
            raise PermissionDenied(f"this key may not do this (it needs {permission})")
        return principal

    setattr(check, _MARK, permission)
    return Depends(check)


async def _anybody() -> None: ...


setattr(_anybody, _MARK, _PUBLIC)
PUBLIC: Final = Depends(_anybody)

Reader = Annotated[Principal, requires("jobs:read")]
Writer = Annotated[Principal, requires("jobs:write")]
KeyReader = Annotated[Principal, requires("keys:read")]
KeyWriter = Annotated[Principal, requires("keys:write")]
Visitor = Annotated[Principal, requires("platform:read")]
Operator = Annotated[Principal, requires("platform:operate")]


def permission_of(route: APIRoute) -> str | None:
    """None where it declares nothing."""
    marks = [getattr(one.call, _MARK, None) for one in route.dependant.dependencies]
    return next((mark for mark in marks if mark is not None), None)


def routes_of(app: FastAPI) -> Iterator[APIRoute]:
    """Every route that the app answers. Internal where something answers that is no route of ours."""
    for context in iter_route_contexts(app.routes):
        route = getattr(context, "original_route", context)
        if not isinstance(route, APIRoute):
            raise Internal(f"{route!r} is no APIRoute and declares no permission")
        yield route


def public_paths(app: FastAPI) -> frozenset[str]:
    return frozenset(route.path for route in routes_of(app) if permission_of(route) == _PUBLIC)


def _gateway(request: Request) -> ApiServices:
    services = request.app.state.gateway
    assert isinstance(services, ApiServices)  # noqa: S101 - set by create_app
    return services


Services = Annotated[ApiServices, Depends(_gateway)]
