"""What a request carries besides its parameters: an API key and a trace context.

REST reads them from HTTP headers, gRPC from metadata; both parse them here.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

import structlog

from services.core.domain.errors import Unauthenticated

_TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """W3C Trace Context, version 00."""

    trace_id: str
    """32 hexadecimal digits."""
    traceparent: str
    """The header's value, with a span id of this service."""


def enter_trace(traceparent: str) -> TraceContext:
    """Continues the caller's trace, or starts a new one if ``traceparent`` is empty or malformed.

    The trace is added to every log line of the current context.
    """
    match = _TRACEPARENT.fullmatch(traceparent)
    trace_id = match[1] if match else secrets.token_hex(16)
    trace = TraceContext(trace_id, f"00-{trace_id}-{secrets.token_hex(8)}-01")
    structlog.contextvars.bind_contextvars(trace_id=trace.trace_id, traceparent=trace.traceparent)
    return trace


def bearer_key(authorization: str) -> str:
    """The API key of ``Bearer KEY``. Raises Unauthenticated if there is none or the scheme is another one."""
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer" or not key:
        raise Unauthenticated(
            "no API key was sent; send `authorization: Bearer weft_...` as an HTTP header or as gRPC metadata "
            "(`weft login` stores a key for the command line)"
        )
    return key.strip()
