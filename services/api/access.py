"""Who asks, and what they may: the one place that knows scopes and the borders between tenants."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from services.core.domain.errors import FieldError, InvalidRequest, NotFound, PermissionDenied
from services.core.domain.job import Job

Permission = Literal["jobs:read", "jobs:write", "keys:read", "keys:write", "platform:read", "platform:operate"]
Scope = Literal["admin", "user"]

PERMISSIONS: Final[dict[str, frozenset[Permission]]] = {
    "admin": frozenset({"jobs:read", "jobs:write", "keys:read", "keys:write", "platform:read", "platform:operate"}),
    "user": frozenset({"jobs:read", "jobs:write", "keys:read", "keys:write", "platform:read"}),
}
ALL_TENANTS: Final = "*"
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The holder of a key."""

    key_id: str
    user: str
    tenant: str
    scope: Scope

    @property
    def admin(self) -> bool:
        return self.scope == "admin"

    def allows(self, permission: Permission) -> bool:
        return permission in PERMISSIONS[self.scope]

    def acting_tenant(self, params: str | None) -> str:
        """The one tenant that a change is made in. PermissionDenied for another's, unless an admin asks."""
        if params is None or params == self.tenant:
            return self.tenant
        self._only_admins(params)
        return checked_name(params, "/query/tenant")

    def listed_tenant(self, params: str | None) -> str | None:
        """The tenant whose things are listed; None: all tenants'."""
        if params == ALL_TENANTS:
            self._only_admins(params)
            return None
        return self.acting_tenant(params)

    def _only_admins(self, params: str) -> None:
        if not self.admin:
            what = "all tenants" if params == ALL_TENANTS else "another tenant"
            raise PermissionDenied(f"only an admin's key may ask for {what}")

    def own(self, job: Job | None, job_id: str) -> Job:
        """The job, if it is there and within reach; a foreign one and a missing one look the same."""
        if job is None or job.deleted is not None or not (self.admin or job.tenant == self.tenant):
            raise NotFound(f"there is no job {job_id}")
        return job


def checked_name(name: str, pointer: str) -> str:
    """A tenant's or user's name: part of keys, paths and labels."""
    if _NAME.fullmatch(name) is None:
        message = "a name has 1 to 63 lower-case letters, digits, '.', '_' or '-', first and last a letter or digit"
        raise InvalidRequest(f"{pointer}: {message}", errors=(FieldError(pointer, message),))
    return name
