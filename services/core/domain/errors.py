"""Every error Weft shows to anyone, and the one table that says how each front door shows it.

    WeftError
    ├── InvalidRequest            the request is wrong, and says where
    │   ├── InvalidSpec           a job spec with field errors
    │   ├── InvalidArchive        a code archive that is not a plain zip
    │   └── IdempotencyMismatch   the same key came with another body
    ├── Unauthenticated · PermissionDenied
    ├── NotFound
    ├── Conflict                  the state of the thing forbids it now
    │   ├── IllegalTransition     the status machine forbids it
    │   ├── StaleRevision         somebody else changed it first (internal: callers read again)
    │   ├── StaleFence            a newer term or attempt exists (internal: the caller stops)
    │   ├── Duplicate             a unique key is taken (internal: callers read what is there)
    │   ├── PreconditionFailed    If-Match named another generation
    │   └── Quarantined           what is stored of it cannot be read; nobody acts on it until it is mended
    ├── ResourceExhausted         quota, rate or size
    │   ├── TooLarge
    │   └── NoSpace
    ├── Unavailable               a store or service is away; try again
    └── Internal                  ours

Adapters translate their library's errors into these at the border; nothing else crosses a port.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing wrong in a request: a JSON pointer, what is wrong, and what to write instead."""

    pointer: str
    """RFC 6901 pointer into the submitted document, e.g. ``/roles/worker/count``."""
    message: str
    hint: str = ""


class WeftError(Exception):
    """Root of the tree. ``message`` is for people and says what to do."""

    def __init__(
        self, message: str, *, errors: tuple[FieldError, ...] = (), retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.errors = errors
        self.retry_after_s = retry_after_s


class InvalidRequest(WeftError): ...


class InvalidSpec(InvalidRequest): ...


class InvalidArchive(InvalidRequest): ...


class IdempotencyMismatch(InvalidRequest): ...


class Unauthenticated(WeftError): ...


class PermissionDenied(WeftError): ...


class NotFound(WeftError): ...


class Conflict(WeftError): ...


class IllegalTransition(Conflict): ...


class StaleRevision(Conflict): ...


class StaleFence(Conflict): ...


class Duplicate(Conflict): ...


class PreconditionFailed(Conflict): ...


class Quarantined(Conflict):
    """``tenant``: whose it is, as far as that can be read; empty: nobody knows."""

    def __init__(
        self,
        message: str,
        *,
        tenant: str = "",
        errors: tuple[FieldError, ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, errors=errors, retry_after_s=retry_after_s)
        self.tenant = tenant


class ResourceExhausted(WeftError): ...


class TooLarge(ResourceExhausted): ...


class NoSpace(ResourceExhausted): ...


class Unavailable(WeftError): ...


class Internal(WeftError): ...


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """How one error is shown by HTTP (RFC 9457), gRPC and the command line."""

    code: str
    """Stable machine name; the problem type is ``urn:weft:error:<code>``."""
    http: int
    grpc: str
    """Name of the ``grpc.StatusCode``."""
    exit_code: int
    """Exit code of the CLI (contracts.md)."""
    retryable: bool
    """Whether the same request may succeed later, unchanged."""

    @property
    def problem_type(self) -> str:
        return f"urn:weft:error:{self.code}"


TABLE: Final[dict[type[WeftError], ErrorRow]] = {
    WeftError: ErrorRow("internal", 500, "INTERNAL", 1, False),
    InvalidRequest: ErrorRow("invalid-request", 400, "INVALID_ARGUMENT", 2, False),
    InvalidSpec: ErrorRow("invalid-spec", 400, "INVALID_ARGUMENT", 2, False),
    InvalidArchive: ErrorRow("invalid-archive", 400, "INVALID_ARGUMENT", 2, False),
    IdempotencyMismatch: ErrorRow("idempotency-mismatch", 422, "INVALID_ARGUMENT", 5, False),
    Unauthenticated: ErrorRow("unauthenticated", 401, "UNAUTHENTICATED", 3, False),
    PermissionDenied: ErrorRow("permission-denied", 403, "PERMISSION_DENIED", 3, False),
    NotFound: ErrorRow("not-found", 404, "NOT_FOUND", 4, False),
    Conflict: ErrorRow("conflict", 409, "FAILED_PRECONDITION", 5, False),
    IllegalTransition: ErrorRow("illegal-transition", 409, "FAILED_PRECONDITION", 5, False),
    StaleRevision: ErrorRow("stale-revision", 409, "ABORTED", 5, True),
    StaleFence: ErrorRow("stale-fence", 409, "ABORTED", 5, False),
    Duplicate: ErrorRow("duplicate", 409, "ALREADY_EXISTS", 5, False),
    PreconditionFailed: ErrorRow("precondition-failed", 412, "FAILED_PRECONDITION", 5, False),
    Quarantined: ErrorRow("quarantined", 409, "FAILED_PRECONDITION", 5, False),
    ResourceExhausted: ErrorRow("resource-exhausted", 429, "RESOURCE_EXHAUSTED", 1, True),
    TooLarge: ErrorRow("too-large", 413, "RESOURCE_EXHAUSTED", 2, False),
    NoSpace: ErrorRow("no-space", 507, "RESOURCE_EXHAUSTED", 1, True),
    Unavailable: ErrorRow("unavailable", 503, "UNAVAILABLE", 1, True),
    Internal: ErrorRow("internal", 500, "INTERNAL", 1, False),
}


def row(error: WeftError | type[WeftError]) -> ErrorRow:
    """The table row of an error; a subclass without a row of its own is shown as its nearest parent."""
    kind = error if isinstance(error, type) else type(error)
    return next(TABLE[parent] for parent in kind.__mro__ if parent in TABLE)
