"""The caller and its permissions: scopes, and the borders between tenants."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from services.core.domain.errors import FieldError, InvalidRequest, NotFound, PermissionDenied
from services.core.domain.job import Job

Permission = Literal[
    "jobs:read",
    "jobs:write",
    "keys:read",
    "keys:write",
    "secrets:read",
    "secrets:write",
    "platform:read",
    "platform:operate",
]
Scope = Literal["admin", "user"]

_OF_USERS: Final[tuple[Permission, ...]] = (
    "jobs:read",
    "jobs:write",
    "keys:read",
    "keys:write",
    "secrets:read",
    "secrets:write",
    "platform:read",
)
PERMISSIONS: Final[dict[str, frozenset[Permission]]] = {
    "admin": frozenset((*_OF_USERS, "platform:operate")),
    "user": frozenset(_OF_USERS),
}
ALL_TENANTS: Final = "*"
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The caller: the holder of an API key, by itself or in a session of a browser."""

    key_id: str
    user: str
    tenant: str
    scope: Scope
    session: str = ""
    """Id of the session; empty: the request carries the key itself."""

    @property
    def admin(self) -> bool:
        return self.scope == "admin"

    def require(self, permission: Permission) -> None:
        """Raises PermissionDenied if the caller lacks the permission."""
        if permission not in PERMISSIONS[self.scope]:
            raise PermissionDenied(f"this key may not do this (it needs {permission})")

    def acting_tenant(self, tenant: str | None) -> str:
        """The tenant in which a change is made; ``tenant`` is the requested one, None: the caller's.

        Raises PermissionDenied for another tenant, unless the caller is an admin; InvalidRequest for a malformed name.
        """
        if tenant is None or tenant == self.tenant:
            return self.tenant
        self._require_admin(tenant)
        return checked_name(tenant, "/query/tenant")

    def listed_tenant(self, tenant: str | None) -> str | None:
        """The tenant whose objects are listed; None: all tenants. Raises as ``acting_tenant``."""
        if tenant == ALL_TENANTS:
            self._require_admin(tenant)
            return None
        return self.acting_tenant(tenant)

    def _require_admin(self, tenant: str) -> None:
        if not self.admin:
            tenants = "all tenants" if tenant == ALL_TENANTS else "another tenant"
            raise PermissionDenied(f"only an admin's key may name {tenants}")

    def actor_on(self, job: Job) -> str:
        """The caller as the actor of a change to the job: ``user:ada``, and ``user:acme/ada`` from another tenant."""
        return f"user:{self.user}" if self.tenant == job.tenant else f"user:{self.tenant}/{self.user}"

    def visible(self, job: Job | None, job_id: str, *, deleted: bool = False) -> Job:
        """The job. Raises NotFound, in the same words, if it is missing, another tenant's, or deleted.

        ``deleted``: a deleted job is visible, too.
        """
        if job is None or (job.deleted is not None and not deleted) or not (self.admin or job.tenant == self.tenant):
            raise NotFound(f"there is no job {job_id}")
        return job


def checked_name(name: str, pointer: str) -> str:
    """A tenant's or user's name, which becomes part of keys, paths and labels. Raises InvalidRequest."""
    if _NAME.fullmatch(name) is None:
        message = "a name has 1 to 63 lower-case letters, digits, '.', '_' or '-', first and last a letter or digit"
        raise InvalidRequest.of([FieldError(pointer, message)])
    return name
