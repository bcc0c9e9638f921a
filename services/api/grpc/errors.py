"""Errors of the one table in gRPC: a status, and google.rpc details for programs.

Details travel in a header, which clients limit to 8 KiB: field errors beyond 4,000 bytes are cut.
"""

from __future__ import annotations

import math
from typing import Final

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from services.api.answers import printable
from services.core.adapters.rpc.wire import ERROR_KEY, RETRY_KEY
from services.core.domain.errors import FieldError, WeftError, row

DETAILS_KEY: Final = "grpc-status-details-bin"
_MESSAGE: Final = 1000
_VIOLATIONS: Final = 4000
"""Bytes of all field errors together."""


def status_of(error: WeftError, trace_id: str) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]:
    """Code, message and trailing metadata."""
    shown = row(error)
    code, message = grpc.StatusCode[shown.grpc], printable(error.message)[:_MESSAGE]
    reason = error_details_pb2.ErrorInfo(reason=shown.code, domain="weft", metadata={"trace_id": trace_id})
    details: list[Message] = [reason]
    if error.errors:
        details.append(_violations(error.errors))
    trailing: list[tuple[str, str | bytes]] = [(ERROR_KEY, shown.code)]
    if error.retry_after_s is not None or shown.http in {429, 503, 507}:
        after_ms = math.ceil((error.retry_after_s or 1) * 1000)
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(after_ms)
        details.append(retry)
        trailing.append((RETRY_KEY, str(after_ms)))
    number: int = code.value[0]
    status = status_pb2.Status(code=number, message=message, details=[_packed(detail) for detail in details])
    return code, message, (*trailing, (DETAILS_KEY, status.SerializeToString()))


def _violations(errors: tuple[FieldError, ...]) -> error_details_pb2.BadRequest:
    violations, size = error_details_pb2.BadRequest(), 0
    for error in errors:
        text = f"{error.message}; {error.hint}" if error.hint else error.message
        # REST has these parameters in the query, gRPC in the message itself.
        field, description = printable(error.pointer.removeprefix("/query")), printable(text)
        size += len(field.encode()) + len(description.encode())
        if size > _VIOLATIONS:
            break
        violations.field_violations.add(field=field, description=description)
    return violations


def _packed(message: Message) -> Any:
    packed = Any()
    packed.Pack(message)
    return packed
