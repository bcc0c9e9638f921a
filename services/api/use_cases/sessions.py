"""Sessions of browsers: sign in, the current session, sign out, one-time codes."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from services.api.access import PERMISSIONS, Principal
from services.api.answers import Answer, Time, as_time, doc
from services.api.params import Params
from services.api.services import ApiServices
from services.api.sessions import SignedIn
from services.core.domain.errors import InvalidRequest, PermissionDenied, Unauthenticated


class SignInParams(Params):
    """What a session is made from: exactly one of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    key: str | None = Field(default=None, max_length=1000, description="An API key.")
    code: str | None = Field(default=None, max_length=1000, description="A one-time code.")


class Session(Answer):
    """The session of a browser."""

    id: Annotated[str, doc("Id of the session: s and 22 characters.")]
    user: Annotated[str, doc("User of its key.")]
    tenant: Annotated[str, doc("Tenant of its key.")]
    scope: Annotated[str, doc("user or admin.")]
    permissions: Annotated[list[str], doc("What the session allows.")]
    csrf: Annotated[str, doc("Send it as the header X-Weft-CSRF with every request that changes something.")]
    created: Annotated[Time, doc("When it began.")]
    expires: Annotated[Time, doc("When it ends if it is not used again.")]


class SessionCode(Answer):
    """A one-time code, with which a browser signs in."""

    code: Annotated[str, doc("The code. It works once.")]
    expires: Annotated[Time, doc("When it stops working: a minute after it was made.")]


async def sign_in(services: ApiServices, params: SignInParams) -> tuple[Session, str]:
    """A new session, and the value of its cookie. Raises InvalidRequest, Unauthenticated."""
    if (params.key is None) == (params.code is None):
        raise InvalidRequest("send exactly one of key and code")
    signed_in, cookie = await services.sessions.sign_in(key=params.key and params.key.strip(), code=params.code)
    return _answer(signed_in), cookie


def current_session(signed_in: SignedIn | None) -> Session:
    """The session that the request came in. Raises Unauthenticated if it came with an API key."""
    if signed_in is None:
        raise Unauthenticated("this request has an API key and no session; GET /v1/whoami tells whose key it is")
    return _answer(signed_in)


async def sign_out(services: ApiServices, principal: Principal) -> None:
    """Ends the session that the request came in. Raises Unauthenticated if it came with an API key."""
    if not principal.session:
        raise Unauthenticated("this request has an API key and no session; DELETE /v1/keys/{key_id} revokes a key")
    await services.sessions.end(principal, principal.session)


async def make_code(services: ApiServices, principal: Principal) -> SessionCode:
    """A one-time code with the rights of the caller's key. Raises PermissionDenied in a session: a session could
    otherwise prolong itself without end.
    """
    if principal.session:
        raise PermissionDenied("a one-time code is made with an API key, not in a session")
    code, expires = await services.sessions.make_code(principal)
    return SessionCode(code=code, expires=as_time(expires))


def _answer(signed_in: SignedIn) -> Session:
    """The session as its user sees it."""
    session, principal = signed_in.session, signed_in.principal
    return Session(
        id=session.id,
        user=principal.user,
        tenant=principal.tenant,
        scope=principal.scope,
        permissions=sorted(PERMISSIONS[principal.scope]),
        csrf=signed_in.csrf,
        created=as_time(session.created),
        expires=as_time(signed_in.expires),
    )
