"""Measures what a tenant has in the object store, for display.

The store is listed page by page; nothing is counted while jobs run. An answer is kept for a minute, and a measurement
ends after ten seconds: then the answer says that it is incomplete. Requests about one tenant share a measurement.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from services.core.ports.clock import Clock
from services.core.ports.object_store import ObjectMeta, ObjectStore

_PAGE: Final = 10_000
_MOST_S: Final = 10.0
_KEPT_S: Final = 60.0
_TENANTS: Final = 1_000
"""Answers that are kept."""
CODE: Final = "code"
_OTHER: Final = "other"
_ATTEMPT_PARTS: Final = ("results", "logs", "checkpoints")


@dataclass(slots=True)
class Usage:
    """What a tenant has stored."""

    measured: int
    """Unix ms of the begin of the measurement."""
    objects: int = 0
    size: dict[str, int] = field(default_factory=dict)
    """Bytes by kind: code, results, logs, checkpoints, other."""
    complete: bool = False
    """False if the measurement took too long: there is more."""

    def add(self, meta: ObjectMeta) -> None:
        """Counts one more object."""
        kind = _kind(meta.key)
        self.objects += 1
        self.size[kind] = self.size.get(kind, 0) + meta.size


class StorageUsage:
    def __init__(self, objects: ObjectStore, clock: Clock) -> None:
        self._objects, self._clock = objects, clock
        self._measuring: dict[str, tuple[float, asyncio.Task[Usage]]] = {}
        """By tenant: when its measurement began, in seconds since boot."""

    async def of(self, tenant: str) -> Usage:
        """The tenant's use of the object store, at most a minute old. Raises Unavailable."""
        now_s = self._clock.boottime()
        began_s, task = self._measuring.get(tenant, (0.0, None))
        failed = task is not None and task.done() and (task.cancelled() or task.exception() is not None)
        if task is None or failed or now_s - began_s > _KEPT_S:
            if len(self._measuring) >= _TENANTS:
                self._measuring.clear()
            task = asyncio.create_task(self._measure(tenant))
            self._measuring[tenant] = now_s, task
        return await asyncio.shield(task)  # a client that leaves ends it for no other

    async def _measure(self, tenant: str) -> Usage:
        prefix, after = f"tenants/{tenant}/", None
        usage, end_s = Usage(self._clock.now_ms()), self._clock.boottime() + _MOST_S
        while self._clock.boottime() < end_s:
            page = await self._objects.list(prefix, after=after, limit=_PAGE)
            for meta in page:
                usage.add(meta)
            if len(page) < _PAGE:
                usage.complete = True
                break
            after = page[-1].key
        return usage


def _kind(key: str) -> str:
    """The kind of ``tenants/<t>/code/<digest>`` or ``tenants/<t>/jobs/<id>/attempts/<n>/<kind>/...``."""
    parts = key.split("/")
    if parts[2] == CODE:
        return CODE
    kind = parts[6] if len(parts) > 7 else _OTHER
    return kind if kind in _ATTEMPT_PARTS else _OTHER
