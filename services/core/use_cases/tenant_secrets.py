"""How a tenant's secret is stored: as one entry of the SecretStore, ``tenant/<tenant>/<name>``.

The entry seals the values together with the keys and the times, so a change is one write.
"""

from __future__ import annotations

import msgspec
import structlog

from services.core.domain.errors import Conflict, Internal, SecretInvalid, SecretsUnavailable, Unavailable
from services.core.ports.secret_store import SecretStore

log = structlog.get_logger()


class StoredSecret(msgspec.Struct, frozen=True, kw_only=True):
    """What the SecretStore seals, as JSON."""

    created: int
    """Unix milliseconds."""
    changed: int
    """Unix milliseconds."""
    changed_by: str
    values: dict[str, str]

    def __repr__(self) -> str:
        """Without the values."""
        return f"StoredSecret(keys={sorted(self.values)})"


def stored_name(tenant: str, name: str) -> str:
    """Returns the name of the SecretStore's entry; with an empty ``name`` the prefix of all of the tenant."""
    return f"tenant/{tenant}/{name}"


def encoded(secret: StoredSecret) -> bytes:
    """Returns the value of the SecretStore's entry."""
    return msgspec.json.encode(secret)


async def read_secret(store: SecretStore, tenant: str, name: str) -> StoredSecret | None:
    """Returns the secret; None where there is none. Raises Internal for a damaged one, and errors of the store."""
    value = await store.get(stored_name(tenant, name))
    try:
        return None if value is None else msgspec.json.decode(value, type=StoredSecret)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Internal("a tenant's secret is damaged; set it again") from None


async def read_needed_secret(store: SecretStore, tenant: str, name: str) -> StoredSecret:
    """Returns a secret that a job needs.

    Raises SecretInvalid for one that is missing or damaged, and SecretsUnavailable if the store is away.
    """
    try:
        secret = await read_secret(store, tenant, name)
    except (Internal, Conflict):
        raise SecretInvalid(f"the secret '{name}' cannot be read") from None
    except Unavailable as away:
        log.warning("secret.unreadable", tenant=tenant, secret=name, why=away.message)
        raise SecretsUnavailable("the platform cannot read tenants' secrets now") from None
    if secret is None:
        raise SecretInvalid(f"there is no secret '{name}' any more")
    return secret
