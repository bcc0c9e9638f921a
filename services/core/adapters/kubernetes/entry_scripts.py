"""The entry script of learners' containers in tenants' namespaces: one ConfigMap for all attempts of a tenant.

It is named after its content and never changed, so a pod starts with the script of the version of Weft that rendered
it, whatever other versions run. A copy in each attempt's owner would be most of what an attempt costs etcd.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from contextlib import suppress
from typing import Any, Final

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import Api, path_of
from services.core.adapters.kubernetes.options import KubernetesOptions
from services.core.domain.errors import Duplicate, NotFound, Unavailable
from services.core.runtime.pod_layout import ENTRY_FILE

_AGAIN_S: Final = 60.0
"""The namespace may have been removed and made again: after this time the ConfigMap is created anew."""
_DIGEST: Final = 12
"""Hexadecimal digits."""


def name_of(options: KubernetesOptions) -> str:
    """The name of the ConfigMap."""
    return f"weft-entry-{hashlib.sha256(options.entry_script.encode()).hexdigest()[:_DIGEST]}"


def config_map(tenant: str, options: KubernetesOptions) -> dict[str, Any]:
    """The ConfigMap in the tenant's namespace. It belongs to no attempt."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name_of(options),
            "namespace": names.namespace_of(tenant, options.namespace_prefix),
            "labels": names.tenant_labels(tenant, options.installation),
        },
        "immutable": True,
        "data": {ENTRY_FILE: options.entry_script},
    }


class EntryScripts:
    def __init__(self, api: Api, options: KubernetesOptions) -> None:
        self._api, self._options = api, options
        self._lock = asyncio.Lock()
        self._until: dict[str, float] = {}
        """Tenant -> when its namespace is looked at again, in monotonic seconds."""

    async def ensure(self, tenant: str) -> None:
        """Creates the ConfigMap where it is missing. Raises Unavailable without the tenant's namespace."""
        async with self._lock:
            if time.monotonic() < self._until.get(tenant, 0.0):
                return
            document = config_map(tenant, self._options)
            try:
                with suppress(Duplicate):
                    await self._api.create(path_of(document, of_collection=True), document)
            except NotFound as error:
                raise Unavailable(f"the tenant's namespace is not there yet: {error}") from error
            self._until[tenant] = time.monotonic() + _AGAIN_S
