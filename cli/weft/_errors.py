"""Every error of the SDK: the platform's own, by the same names and codes, and two of the road to it.

    WeftError
    ├── InvalidRequest            the request is wrong, and says where (`errors`)
    │   ├── InvalidSpec · InvalidArchive · IdempotencyMismatch · AdmissionDenied · SecretInvalid
    ├── Unauthenticated · PermissionDenied
    ├── NotFound
    ├── Conflict                  the state of the thing forbids it now
    │   ├── IllegalTransition · StaleRevision · StaleFence · Duplicate · PreconditionFailed · Quarantined
    ├── ResourceExhausted         quota, rate or size
    │   ├── TooLarge · NoSpace · QuotaExceeded
    ├── Unavailable               try again
    │   ├── SecretsUnavailable
    │   └── ConnectionFailed      no answer at all
    ├── Internal                  the platform's fault
    └── NotFinished               `wait` ran out of time

A test keeps codes and exit codes equal to the platform's table (services.core.domain.errors), which this package cannot
import: a laptop has no platform.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing wrong in a request: a JSON pointer, what is wrong, and what to write instead."""

    pointer: str
    message: str
    hint: str = ""
    place: str = ""
    """File and line of the field, FILE:LINE, or the ``--set`` that changed it, if they are known."""

    @property
    def path(self) -> str:
        """The pointer as people write it: ``roles.worker.count``."""
        parts = self.pointer.split("/")[1:]
        return ".".join(part.replace("~1", "/").replace("~0", "~") for part in parts)

    @property
    def where(self) -> str:
        """Place and field, as far as they are known: ``weft.yaml:7: resources.cpus``."""
        if self.place.startswith(f"--set {self.path}="):
            return self.place
        return ": ".join(filter(None, (self.place, self.path)))


class WeftError(Exception):
    """Root of the tree. ``str(error)`` says what happened and what to do."""

    code: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        errors: tuple[FieldError, ...] = (),
        status: int | None = None,
        retry_after_s: float | None = None,
        trace_id: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.errors = errors
        self.status = status
        """HTTP status of the answer; None where there was none."""
        self.retry_after_s = retry_after_s
        self.trace_id = trace_id
        """What an operator needs to find this request in the logs."""

    def __str__(self) -> str:
        if len(self.errors) < 2:
            return self.message
        lines = [f"  {e.path or 'request'}: {e.message}{f' ({e.hint})' if e.hint else ''}" for e in self.errors]
        return "\n".join([f"{len(self.errors)} things are wrong:", *lines])


class InvalidRequest(WeftError):
    code, exit_code = "invalid-request", 2


class InvalidSpec(InvalidRequest):
    code = "invalid-spec"


class InvalidArchive(InvalidRequest):
    code = "invalid-archive"


class IdempotencyMismatch(InvalidRequest):
    code, exit_code = "idempotency-mismatch", 5


class AdmissionDenied(InvalidRequest):
    code, exit_code = "admission-denied", 5


class SecretInvalid(InvalidRequest):
    code = "secret-invalid"


class Unauthenticated(WeftError):
    code, exit_code = "unauthenticated", 3


class PermissionDenied(WeftError):
    code, exit_code = "permission-denied", 3


class NotFound(WeftError):
    code, exit_code = "not-found", 4


class Conflict(WeftError):
    code, exit_code = "conflict", 5


class IllegalTransition(Conflict):
    code = "illegal-transition"


class StaleRevision(Conflict):
    code, retryable = "stale-revision", True


class StaleFence(Conflict):
    code = "stale-fence"


class Duplicate(Conflict):
    code = "duplicate"


class PreconditionFailed(Conflict):
    code = "precondition-failed"


class Quarantined(Conflict):
    code = "quarantined"


class ResourceExhausted(WeftError):
    code, retryable = "resource-exhausted", True


class TooLarge(ResourceExhausted):
    code, exit_code, retryable = "too-large", 2, False


class NoSpace(ResourceExhausted):
    code = "no-space"


class QuotaExceeded(ResourceExhausted):
    code = "quota-exceeded"


class Unavailable(WeftError):
    code, retryable = "unavailable", True


class SecretsUnavailable(Unavailable):
    code = "secrets-unavailable"


class Internal(WeftError): ...


class ConnectionFailed(Unavailable):
    """Nothing answered at the platform's address."""


class NotFinished(WeftError):
    """The job was still going when `wait` ran out of time. Nothing happened to the job."""

    exit_code = 101


def _tree(root: type[WeftError]) -> Iterator[type[WeftError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


BY_CODE: dict[str, type[WeftError]] = {
    kind.code: kind for kind in _tree(WeftError) if kind not in {WeftError, ConnectionFailed, NotFinished}
}
_BY_STATUS: dict[int, type[WeftError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    409: Conflict,
    412: PreconditionFailed,
    413: TooLarge,
    422: InvalidRequest,
    429: ResourceExhausted,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: NoSpace,
}


def from_problem(status: int, problem: Mapping[str, Any] | None, *, retry_after: str | None = None) -> WeftError:
    """The error an answer stands for.

    problem: the RFC 9457 document, or None where the answer was none (a proxy's page, say).
    retry_after: the header, whole seconds; anything else counts as absent.
    """
    problem = problem or {}
    kind = BY_CODE.get(str(problem.get("code"))) or _BY_STATUS.get(status, Internal)
    fields = tuple(
        FieldError(str(entry.get("pointer", "")), str(entry.get("message", "")), str(entry.get("hint") or ""))
        for entry in problem.get("errors") or ()
        if isinstance(entry, Mapping)
    )
    detail = problem.get("detail") or problem.get("title")
    return kind(
        str(detail) if detail else f"the platform answered with HTTP status {status} and no explanation",
        errors=fields,
        status=status,
        retry_after_s=float(retry_after) if retry_after and retry_after.isdigit() else None,
        trace_id=str(problem.get("trace_id") or ""),
    )
