"""Sessions of browsers over HTTP: the cookie, sign in and out, one-time codes."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from services.api.rest.answers import answer
from services.api.rest.auth_middleware import COOKIE, origins_of, signed_in_of
from services.api.rest.bodies import body_schema, read_model
from services.api.rest.openapi import ok
from services.api.rest.origins import is_https
from services.api.rest.permissions import PUBLIC, Services, Visitor
from services.api.use_cases import sessions
from services.api.use_cases.sessions import Session, SessionCode, SignInParams

router = APIRouter(prefix="/v1/session", tags=["sessions"])
_NOT_STORED = {"Cache-Control": "no-store"}


@router.post(
    "",
    dependencies=[PUBLIC],
    **ok(Session, "The session; its cookie is in the header Set-Cookie"),
    openapi_extra=body_schema(SignInParams),
)
async def sign_in(services: Services, request: Request) -> Response:
    origins_of(request.scope).check_sign_in(request.headers)
    session, cookie = await sessions.sign_in(services, await read_model(request, SignInParams))
    response = answer(session, headers=_NOT_STORED)
    _set_cookie(request, response, cookie)
    return response


@router.get("", **ok(Session, "The session that the request came in"))
async def get_session(_principal: Visitor, request: Request) -> Response:
    return answer(sessions.current_session(signed_in_of(request.scope)), headers=_NOT_STORED)


@router.delete("", status_code=204, responses={204: {"description": "It has ended"}})
async def sign_out(services: Services, principal: Visitor, request: Request) -> Response:
    await sessions.sign_out(services, principal)
    response = Response(status_code=204)
    _set_cookie(request, response, None)
    return response


@router.post("/codes", **ok(SessionCode, "A code that works once, within a minute", 201))
async def make_code(services: Services, principal: Visitor) -> Response:
    return answer(await sessions.make_code(services, principal), status=201, headers=_NOT_STORED)


def _set_cookie(request: Request, response: Response, value: str | None) -> None:
    """None: removes the cookie. Without a maximum age it ends with the browser; the session ends earlier or later."""
    response.set_cookie(
        COOKIE,
        value or "",
        max_age=None if value else 0,
        path=f"{origins_of(request.scope).prefix_of(request.headers)}/",
        secure=is_https(request.scope["scheme"], request.headers),
        httponly=True,
        samesite="strict",
    )
