"""All errors that Weft reports, and one table of how REST, gRPC and the command line report each.

    WeftError
    ├── InvalidRequest            the request is wrong; ``errors`` names the fields
    │   ├── InvalidSpec           a job spec with field errors
    │   ├── InvalidArchive        a code archive that is not a plain zip
    │   ├── IdempotencyMismatch   the idempotency key was used before with another request
    │   ├── AdmissionDenied       the cluster's own rules forbid the objects of an attempt
    │   └── SecretInvalid         a tenant's secret that a job needs is missing, damaged or lacks what is needed
    ├── Unauthenticated · PermissionDenied
    ├── NotFound
    ├── Conflict                  the object's current state forbids the request
    │   ├── IllegalTransition     the status machine forbids it
    │   ├── StaleRevision         the object changed since it was read (internal: callers read again)
    │   ├── StaleFence            a newer term or attempt exists (internal: the caller stops)
    │   ├── Duplicate             a unique key is taken (internal: callers read the existing object)
    │   ├── PreconditionFailed    If-Match named another generation
    │   └── Quarantined           the stored object cannot be read; it is left alone until an operator repairs it
    ├── ResourceExhausted         quota, rate or size
    │   ├── TooLarge
    │   ├── NoSpace
    │   └── QuotaExceeded         the cluster's own quota for the tenant is used up
    ├── Unavailable               a store or service does not answer; the same request may succeed later
    │   └── SecretsUnavailable    the platform cannot read tenants' secrets now
    └── Internal                  a fault of the platform

Adapters translate the errors of their libraries into these. No other error crosses a port.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field of a request."""

    pointer: str
    """RFC 6901 pointer into the submitted document, e.g. ``/roles/worker/count``."""
    message: str
    """What is wrong."""
    hint: str = ""
    """What to write instead; may be empty."""

    @property
    def path(self) -> str:
        """The field as a spec writes it: ``roles.worker.count``; empty for the whole document."""
        parts = self.pointer.split("/")[1:]
        return ".".join(part.replace("~1", "/").replace("~0", "~") for part in parts)


class WeftError(Exception):
    """The root of all errors.

    ``message``: for people; says what happened and what to do. ``errors``: the wrong fields of a request.
    ``retry_after_s``: seconds after which the caller may try again, where that is known.
    """

    def __init__(
        self, message: str, *, errors: tuple[FieldError, ...] = (), retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.errors = errors
        self.retry_after_s = retry_after_s


class InvalidRequest(WeftError):
    @classmethod
    def of(cls, errors: Sequence[FieldError], *, document: str = "the spec") -> Self:
        """The error for these wrong fields. Its message has the first one, its hint, and how many more there are.

        ``document``: what an error without a field is about.
        """
        first = errors[0]
        hint = f"; {first.hint}" if first.hint else ""
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return cls(f"{first.path or document}: {first.message}{hint}{more}", errors=tuple(errors))


class InvalidSpec(InvalidRequest): ...


class InvalidArchive(InvalidRequest): ...


class IdempotencyMismatch(InvalidRequest): ...


class AdmissionDenied(InvalidRequest): ...


class SecretInvalid(InvalidRequest): ...


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
    """``tenant``: the owner, as far as the stored object can be read; empty: unknown."""

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


class QuotaExceeded(ResourceExhausted): ...


class Unavailable(WeftError): ...


class SecretsUnavailable(Unavailable): ...


class Internal(WeftError): ...


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """How one error is reported over HTTP (RFC 9457), gRPC and on the command line."""

    code: str
    """Stable machine name; the problem type is ``urn:weft:error:<code>``."""
    http: int
    """HTTP status code."""
    grpc: str
    """Name of the ``grpc.StatusCode``."""
    exit_code: int
    """Exit code of the command line (contracts.md)."""
    retryable: bool
    """Whether the same request may succeed later."""

    @property
    def problem_type(self) -> str:
        """The ``type`` of the RFC 9457 problem document."""
        return f"urn:weft:error:{self.code}"


TABLE: Final[dict[type[WeftError], ErrorRow]] = {
    WeftError: ErrorRow("internal", 500, "INTERNAL", 1, False),
    InvalidRequest: ErrorRow("invalid-request", 400, "INVALID_ARGUMENT", 2, False),
    InvalidSpec: ErrorRow("invalid-spec", 400, "INVALID_ARGUMENT", 2, False),
    InvalidArchive: ErrorRow("invalid-archive", 400, "INVALID_ARGUMENT", 2, False),
    IdempotencyMismatch: ErrorRow("idempotency-mismatch", 422, "INVALID_ARGUMENT", 5, False),
    AdmissionDenied: ErrorRow("admission-denied", 403, "FAILED_PRECONDITION", 5, False),
    SecretInvalid: ErrorRow("secret-invalid", 400, "INVALID_ARGUMENT", 2, False),
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
    QuotaExceeded: ErrorRow("quota-exceeded", 429, "RESOURCE_EXHAUSTED", 1, True),
    Unavailable: ErrorRow("unavailable", 503, "UNAVAILABLE", 1, True),
    SecretsUnavailable: ErrorRow("secrets-unavailable", 503, "UNAVAILABLE", 1, True),
    Internal: ErrorRow("internal", 500, "INTERNAL", 1, False),
}


def row(error: WeftError | type[WeftError]) -> ErrorRow:
    """Returns the row of an error or error class. A subclass without a row has that of its nearest parent."""
    kind = error if isinstance(error, type) else type(error)
    return next(TABLE[parent] for parent in kind.__mro__ if parent in TABLE)
