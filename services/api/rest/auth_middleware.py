"""The outermost layer of REST: authentication, tracing, metrics, and an answer to every request.

It runs before the router and before the body is read, so an unauthenticated request costs one HMAC and no memory. The
routes declare which of them need no key (``permissions``); a route without a declaration is closed.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

import structlog
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.api.instrumentation import Instrumentation
from services.api.keys import Keys
from services.api.request_context import TraceContext, bearer_key, enter_trace
from services.api.rest.answers import error_response
from services.api.stale_cache import reporting_age
from services.core.domain.errors import Internal, WeftError

PRINCIPAL: Final = "weft.principal"
TRACE: Final = "weft.trace"
HANDLED: Final = "weft.handled"
"""Set after an unexpected error was logged and answered."""
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
        trace = scope[TRACE] = enter_trace(headers.get("traceparent", ""))
        status, started = 0, time.monotonic()

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                template = _template(scope)
                self._instrumentation.seconds.labels(scope["method"][:10], template).observe(time.monotonic() - started)
                self._instrumentation.requests.labels(scope["method"][:10], template, str(status)).inc()
                if age.seconds is not None:
                    message["headers"] = [*message["headers"], (b"age", str(round(age.seconds)).encode())]
            await send(message)

        with self._instrumentation.running.track_inprogress(), reporting_age() as age:
            try:
                if scope["path"] not in self._public:
                    scope[PRINCIPAL] = await self._keys.authenticate(bearer_key(headers.get("authorization", "")))
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


def trace_of(scope: Scope) -> TraceContext | None:
    """The request's trace; None outside of the middleware."""
    trace = scope.get(TRACE)
    return trace if isinstance(trace, TraceContext) else None


def trace_id_of(scope: Scope) -> str:
    """The id of the request's trace; empty outside of the middleware."""
    trace = trace_of(scope)
    return trace.trace_id if trace else ""


def _template(scope: Scope) -> str:
    """The route's path with the names of its parameters: one time series for each route."""
    return str(getattr(scope.get("route"), "path", "unknown"))
