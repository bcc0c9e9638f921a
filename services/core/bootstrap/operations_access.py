"""Access to a service's operations address: health without a key, everything else with a key only.

A key is the first administrator's key, or the token of a service that may call ``weft.v1.Operations``. The key is read
from its file at each request, so that a new one counts at once.
"""

from __future__ import annotations

import hmac
from typing import Final

import structlog

from services.core.adapters.rpc.server import VerifiesServices
from services.core.domain.errors import PermissionDenied, Unauthenticated, WeftError
from services.core.domain.service_access import may_call
from services.core.ports.secret_store import SecretStore

OPERATIONS: Final = "weft.v1.Operations"
ADMIN_KEY: Final = "admin-key"
"""Name of the secret that holds the first administrator's key."""
log = structlog.get_logger()


class OperationsAccess:
    """Authenticates the readers of one service's operations address."""

    def __init__(self, name: str, secrets: SecretStore, services: VerifiesServices) -> None:
        """``name``: the service whose address is read."""
        self._name, self._secrets, self._services = name, secrets, services

    async def check(self, authorization: str) -> None:
        """Returns for a valid key. Raises Unauthenticated, and PermissionDenied for a service without the right."""
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise Unauthenticated("this needs the first administrator's key: Authorization: Bearer weft_...")
        if await self._is_admin(key):
            return
        caller = self._services.verify(key)
        if not may_call(caller, self._name, OPERATIONS):
            raise PermissionDenied(f"the service {caller} may not call {OPERATIONS} of {self._name}")

    async def _is_admin(self, key: str) -> bool:
        try:
            known = await self._secrets.get(ADMIN_KEY)
        except WeftError as error:
            log.warning("admin_key.read_failed", why=error.message)
            return False
        return known is not None and bool(known.strip()) and hmac.compare_digest(known.strip(), key.strip().encode())
