"""The outermost layer: nothing passes unauthenticated, uncounted, without a trace, or ends in anything but an answer.

It runs before the router and before a byte of the body is read, so a stranger costs one HMAC and no memory. Which paths
need no key it learns from the routes themselves (``permissions``): what declares nothing is closed.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Collection
from typing import Final

import structlog
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.api.access import Principal
from services.api.instrumentation import Instrumentation
from services.api.keys import Keys
from services.api.rest.answers import refusal
from services.api.stale_cache import reporting_age
from services.core.domain.errors import Internal, Unauthenticated, WeftError

PRINCIPAL: Final = "weft.principal"
TRACE: Final = "weft.trace"
HANDLED: Final = "weft.handled"
"""Set where a crash was answered already."""
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
log = structlog.get_logger()


class AuthMiddleware:
    def __init__(self, app: ASGIApp, *, keys: Keys, instrumentation: Instrumentation, public: Collection[str]) -> None:
        self._app = app
        self._keys = keys
        self._instrumentation = instrumentation
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        match = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
        trace_id = match[1] if match else secrets.token_hex(16)
        scope[TRACE] = f"00-{trace_id}-{secrets.token_hex(8)}-01"
        status, begun = 0, time.monotonic()

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                template = _template(scope)
                self._instrumentation.seconds.labels(scope["method"][:10], template).observe(time.monotonic() - begun)
                self._instrumentation.requests.labels(scope["method"][:10], template, str(status)).inc()
                if age.seconds is not None:
                    message["headers"] = [*message["headers"], (b"age", str(round(age.seconds)).encode())]
            await send(message)

        structlog.contextvars.bind_contextvars(trace_id=trace_id, traceparent=scope[TRACE])
        with self._instrumentation.running.track_inprogress(), reporting_age() as age:
            try:
                if scope["path"] not in self._public:
                    scope[PRINCIPAL] = await self._who(headers)
                await self._app(scope, receive, counted)
            except ClientDisconnect:
                return
            except WeftError as refused:
                await refusal(refused, trace_id)(scope, receive, counted)
            except Exception:  # the outermost edge: whatever it is, its text is for the log and not for strangers
                if scope.get(HANDLED):
                    return
                log.exception("api.failed", path=scope["path"])
                if status:
                    raise  # the answer has begun: cutting the connection is the only way to say that it is not whole
                await refusal(Internal("an internal error; the service's log has its trace"), trace_id)(
                    scope, receive, counted
                )

    async def _who(self, headers: Headers) -> Principal:
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise Unauthenticated("this needs a key: send `Authorization: Bearer weft_...` (see `weft login`)")
        return await self._keys.authenticate(token.strip())


def trace_id_of(scope: Scope) -> str:
    return str(scope.get(TRACE, "")).split("-")[1] if scope.get(TRACE) else ""


def _template(scope: Scope) -> str:
    """The route's path with names instead of values: one time series per route, whatever is asked for."""
    return str(getattr(scope.get("route"), "path", "unknown"))
