"""The one tenant of a machine in isolation ``trusted``, where learners can read the files of others and the platform.

The first tenant is recorded durably: its learners may have left programs in the home of the platform's user, which
would run with the next tenant's rights. The operator may remove the record after checking that home.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from services.core.domain.codec import MALFORMED
from services.core.domain.errors import InvalidRequest
from services.core.runtime.durable_files import read_json, write_json

TENANT_FILE: Final = "tenant.json"
"""Below the agent's own folder: ``{tenant}``."""


class OnlyTenant:
    """``folder``: the agent's own."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TENANT_FILE

    def check(self, tenant: str) -> None:
        """Records the first tenant. InvalidRequest for another. Raises NoSpace."""
        present = self._read()
        if not present:
            write_json(self._path, {"tenant": tenant})
        elif present != tenant:
            raise InvalidRequest(
                f"this machine runs learners without isolation (`weft status`: trusted) and serves tenant {present} "
                f"already, so no job of tenant {tenant} starts here; for several tenants the operator runs `weft up` "
                f"as root or installs bubblewrap; to change the tenant, the operator removes {self._path}"
            )

    def _read(self) -> str:
        """Empty before the first job. A record that cannot be read names no tenant: it is one that fits none."""
        try:
            document = read_json(self._path)
            return "" if document is None else str(document["tenant"])
        except MALFORMED:
            return "(unreadable)"
