"""The entry script of learners' containers in tenants' namespaces: one ConfigMap for all attempts of a tenant.

It is named after its content and immutable, so a pod starts with the script of the version of Weft that rendered it,
also while another version runs beside it. The script is larger than most plans: a copy in each attempt's owner would be
most of what an attempt stores in etcd.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import defaultdict
from functools import cache
from typing import Final

from services.core.adapters.kubernetes import tenants
from services.core.adapters.kubernetes.api import Api, Document, path_of
from services.core.adapters.kubernetes.options import KubernetesOptions
from services.core.adapters.kubernetes.places import needing_namespace
from services.core.domain.errors import Duplicate, NotFound, ResourceExhausted, Unavailable
from services.core.runtime.pod_layout import ENTRY_FILE

_AGAIN_S: Final = 60.0
"""After this time it is looked for again: the namespace may have been removed and created anew."""
_DIGEST: Final = 12
"""Hexadecimal digits."""


def name_of(options: KubernetesOptions) -> str:
    """The name of the ConfigMap."""
    return f"weft-entry-{_digest(options.entry_script)}"


@cache  # each pod is rendered with it, and checked with it
def _digest(script: str) -> str:
    return hashlib.sha256(script.encode()).hexdigest()[:_DIGEST]


def config_map(tenant: str, options: KubernetesOptions) -> Document:
    """The ConfigMap in the tenant's namespace."""
    data = {ENTRY_FILE: options.entry_script}
    return tenants.document("ConfigMap", name_of(options), tenant, options, immutable=True, data=data)


class EntryScripts:
    def __init__(self, api: Api, options: KubernetesOptions) -> None:
        self._api, self._options = api, options
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By tenant: its starts that come together send one request."""
        self._until: dict[str, float] = {}
        """Tenant -> when it is looked for again, in monotonic seconds."""

    async def ensure(self, tenant: str, *, anew: bool = False) -> None:
        """Creates the ConfigMap where it is missing. ``anew``: looks even if it was there just now.

        Raises Unavailable without the tenant's namespace, and ResourceExhausted if the one that has the name is not
        Weft's: all learners of the tenant would run its script.
        """
        async with self._locks[tenant]:
            if not anew and time.monotonic() < self._until.get(tenant, 0.0):
                return
            document = config_map(tenant, self._options)
            if not await self._is_there(document):
                await self._create(document)
            self._until[tenant] = time.monotonic() + _AGAIN_S

    async def _create(self, document: Document) -> None:
        try:
            with needing_namespace():
                await self._api.create(path_of(document, of_collection=True), document)
        except Duplicate:  # another process was faster, or it is being removed
            if not await self._is_there(document):
                raise Unavailable(f"{document['metadata']['name']} is being removed") from None

    async def _is_there(self, document: Document) -> bool:
        """Raises ResourceExhausted if another ConfigMap has its name."""
        try:
            present = await self._api.get(path_of(document))
        except NotFound:
            return False
        if present["metadata"].get("deletionTimestamp"):
            return False
        if present.get("data") != document["data"] or not present.get("immutable"):
            raise ResourceExhausted(f"the ConfigMap {document['metadata']['name']} is not of Weft; remove it")
        return True
