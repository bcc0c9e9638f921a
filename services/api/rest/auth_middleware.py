"""The outermost layer of REST: authentication, tracing, metrics, and an answer to every request.

It runs before the router and before the body is read, so an unauthenticated request costs one HMAC and no memory. The
routes declare which of them need no key (``permissions``); a route without a declaration is closed. A browser's session
counts only for requests of the dashboard's own pages (``origins``).
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Collection, MutableMapping
from typing import Any, Final

import structlog
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.api.access import Principal
from services.api.request_context import TraceContext, bearer_key, enter_trace
from services.api.rest.answers import error_response
from services.api.rest.origins import CSRF, Origins
from services.api.services import ApiServices
from services.api.sessions import SignedIn
from services.api.stale_cache import reporting_age
from services.core.domain.errors import Internal, PermissionDenied, WeftError

COOKIE: Final = "weft_session"
PRINCIPAL: Final = "weft.principal"
TRACE: Final = "weft.trace"
HANDLED: Final = "weft.handled"
"""Set after an unexpected error was logged and answered."""
_SIGNED_IN: Final = "weft.signed_in"
_ORIGINS: Final = "weft.origins"
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_METHODS: Final = frozenset({*_READS, "POST", "PUT", "PATCH", "DELETE", "CONNECT", "TRACE"})
_SECURITY: Final = {
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'; sandbox",
    b"x-frame-options": b"DENY",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
}
"""Headers of every response that has no others: a browser runs nothing of what it gets, and shows it in no frame."""
log = structlog.get_logger()


class PublicRoutes:
    """The routes that need no credential, by method and path."""

    def __init__(self, routes: Collection[tuple[str, re.Pattern[str]]]) -> None:
        self._routes = routes

    def has(self, method: str, path: str) -> bool:
        """Whether the request reaches one of them."""
        return any(method == known and pattern.fullmatch(path) for known, pattern in self._routes)


class AuthMiddleware:
    def __init__(self, app: ASGIApp, services: ApiServices, origins: Origins, public: PublicRoutes) -> None:
        self._app = app
        self._services = services
        self._instrumentation = services.instrumentation
        self._origins = origins
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        trace = scope[TRACE] = enter_trace(headers.get("traceparent", ""))
        scope[_ORIGINS] = self._origins
        _remove_prefix(scope, self._origins.prefix)
        status, started = 0, time.monotonic()

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                method, template = _method(scope), _template(scope)
                self._instrumentation.seconds.labels(method, template).observe(time.monotonic() - started)
                self._instrumentation.requests.labels(method, template, str(status)).inc()
                if age.seconds is not None:
                    message["headers"] = [*message["headers"], (b"age", str(round(age.seconds)).encode())]
                _secure(message, private=_SIGNED_IN in scope)
            await send(message)

        with self._instrumentation.running.track_inprogress(), reporting_age() as age:
            try:
                if not self._public.has(scope["method"], scope["path"]):
                    scope[PRINCIPAL] = await self._authenticate(scope, headers)
                await self._app(scope, receive, counted)
            except ClientDisconnect:
                return
            except WeftError as error:
                await error_response(error, trace.trace_id)(scope, receive, counted)
            except Exception:  # the outermost edge: the text of other errors is for the log only
                if scope.get(HANDLED):
                    return
                log.exception("request.failed", path=scope["path"])
                if status:
                    raise  # the response has begun: only a cut connection tells the client that it is incomplete
                internal = Internal("an internal error; the service's log has its trace")
                await error_response(internal, trace.trace_id)(scope, receive, counted)

    async def _authenticate(self, scope: Scope, headers: Headers) -> Principal:
        """The caller. Raises Unauthenticated; PermissionDenied if another site's page uses a session."""
        authorization = headers.get("authorization", "")
        cookie = _cookie(headers)
        if authorization or not cookie:
            return await self._services.keys.authenticate(bearer_key(authorization))
        self._origins.check_host(headers)
        self._origins.check_read(headers)
        signed_in = await self._services.sessions.authenticate(cookie)
        if scope["method"] not in _READS:
            self._origins.check_change(headers)
            sent = headers.get(CSRF, "").encode()
            if not hmac.compare_digest(sent, signed_in.csrf.encode()):
                raise PermissionDenied("a change needs the header X-Weft-CSRF: the `csrf` of GET /v1/session")
        scope[_SIGNED_IN] = signed_in
        return signed_in.principal


def trace_of(scope: Scope) -> TraceContext | None:
    """The request's trace; None outside of the middleware."""
    trace = scope.get(TRACE)
    return trace if isinstance(trace, TraceContext) else None


def trace_id_of(scope: Scope) -> str:
    """The id of the request's trace; empty outside of the middleware."""
    trace = trace_of(scope)
    return trace.trace_id if trace else ""


def signed_in_of(scope: Scope) -> SignedIn | None:
    """The session that the request came in; None if it came with an API key."""
    signed_in = scope.get(_SIGNED_IN)
    return signed_in if isinstance(signed_in, SignedIn) else None


def origins_of(scope: Scope) -> Origins:
    """The origins that are allowed."""
    origins = scope[_ORIGINS]
    assert isinstance(origins, Origins)  # noqa: S101 - set by AuthMiddleware for every request
    return origins


def _cookie(headers: Headers) -> str:
    """The value of the session's cookie; empty if there is none. Of several the first, which has the longest path."""
    pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), "")


def _remove_prefix(scope: Scope, prefix: str) -> None:
    """Removes the prefix from the path, for a proxy that keeps it."""
    if prefix and f"{scope['path']}/".startswith(f"{prefix}/"):
        scope["path"] = scope["path"].removeprefix(prefix) or "/"


def _secure(message: MutableMapping[str, Any], *, private: bool) -> None:
    """Adds the headers that protect browsers. ``private``: the browser keeps no copy that outlives the session."""
    sent = {name.lower() for name, _ in message["headers"]}
    added = [(name, value) for name, value in _SECURITY.items() if name not in sent]
    if private and b"cache-control" not in sent:
        added.append((b"cache-control", b"no-store"))
    message["headers"] = [*message["headers"], *added]


def _method(scope: Scope) -> str:
    """The method as a label of metrics: each value is kept for ever, so methods that HTTP does not define share one."""
    method = str(scope["method"])
    return method if method in _METHODS else "other"


def _template(scope: Scope) -> str:
    """The route's path with the names of its parameters: one time series for each route."""
    return str(getattr(scope.get("route"), "path", "unknown"))
