"""How much a tenant has in the object store: for display (``Storage``), and the bound on it (``StorageBound``).

Both list the tenant's objects, a page at a time; nothing is counted while jobs run.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from services.core.domain.errors import Duplicate, NoSpace, NotFound, Quarantined, StaleRevision, WeftError
from services.core.ports.clock import Clock
from services.core.ports.object_store import ObjectMeta, ObjectStore
from services.core.ports.record_store import Record, RecordStore

_PAGE: Final = 10_000
_MOST_S: Final = 10.0
_KEPT_S: Final = 60.0
_TENANTS: Final = 1_000
"""Answers that are kept."""
CODE: Final = "code"
_OTHER: Final = "other"
_ATTEMPT_PARTS: Final = ("results", "logs", "checkpoints")
_BOUND: Final = "storage"
"""The kind of the records with the tenants' counts."""
_TRIES: Final = 5
log = structlog.get_logger()


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

    @property
    def bytes(self) -> int:
        """In all."""
        return sum(self.size.values())

    def add(self, meta: ObjectMeta) -> None:
        """Counts one more object."""
        kind = _kind(meta.key)
        self.objects += 1
        self.size[kind] = self.size.get(kind, 0) + meta.size


async def measure(
    objects: ObjectStore, clock: Clock, tenant: str, *, most_s: float = math.inf, new_code: bool = True
) -> Usage:
    """Counts the tenant's objects. After ``most_s`` seconds the result is incomplete. Raises Unavailable.

    ``new_code``: False leaves out code that is stored after the begin.
    """
    prefix, after = f"tenants/{tenant}/", None
    usage, end_s = Usage(clock.now_ms()), clock.boottime() + most_s
    while clock.boottime() < end_s:
        page = await objects.list(prefix, after=after, limit=_PAGE)
        for meta in page:
            if new_code or meta.modified <= usage.measured or _kind(meta.key) != CODE:
                usage.add(meta)
        if len(page) < _PAGE:
            usage.complete = True
            break
        after = page[-1].key
    return usage


class Storage:
    """What tenants have stored, for display.

    An answer is kept for a minute, and a measurement ends after ten seconds: then the answer says that it is
    incomplete. Requests about one tenant share a measurement.
    """

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
            task = asyncio.create_task(measure(self._objects, self._clock, tenant, most_s=_MOST_S))
            self._measuring[tenant] = now_s, task
        return await asyncio.shield(task)  # a client that leaves ends it for no other


def _kind(key: str) -> str:
    """The kind of ``tenants/<t>/code/<digest>`` or ``tenants/<t>/jobs/<id>/attempts/<n>/<kind>/...``."""
    parts = key.split("/")
    if parts[2] == CODE:
        return CODE
    kind = parts[6] if len(parts) > 7 else _OTHER
    return kind if kind in _ATTEMPT_PARTS else _OTHER


class StorageBound:
    """The bound on a tenant's bytes in the object store.

    Usage is counted in the background. It is kept in a record, so a restart counts nothing anew. Between two counts the
    code that is uploaded is added; results of jobs are in the next count. A submission starts a count when the last one
    is older than ``count_s``: a silent tenant costs nothing. Tenants are counted one at a time.
    """

    def __init__(
        self, objects: ObjectStore, records: RecordStore, clock: Clock, *, most_bytes: int, count_s: float
    ) -> None:
        """``most_bytes``: of each tenant; 0: no bound, nothing is counted."""
        self._objects, self._records, self._clock = objects, records, clock
        self._most, self._count_ms = most_bytes, count_s * 1000
        self._counting: dict[str, asyncio.Task[None]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def check(self, tenant: str, more: int = 0) -> None:
        """Raises NoSpace if the tenant's objects and ``more`` bytes are beyond the bound."""
        if not self._most:
            return
        record = await self._stored(tenant)
        counted_at, used = (record.body["counted_at"], record.body["bytes"]) if record is not None else (0, 0)
        if self._clock.now_ms() - counted_at > self._count_ms and tenant not in self._counting:
            task = self._counting[tenant] = asyncio.create_task(self._count(tenant))
            task.add_done_callback(lambda _: self._counting.pop(tenant, None))
        if used + more > self._most:
            raise NoSpace(
                f"tenant {tenant} stores {used} bytes of at most {self._most} (WEFT_TENANT_BYTES); delete old "
                "jobs (`weft delete`; their data counts until the retention time is over), or ask the operator for more"
            )

    async def add(self, tenant: str, size: int) -> None:
        """Counts ``size`` bytes that the tenant has stored."""
        if self._most:
            await self._write(tenant, add=size)

    async def counted(self) -> None:
        """Returns once no count runs."""
        await asyncio.gather(*self._counting.values())

    async def close(self) -> None:
        for task in [*self._counting.values()]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _stored(self, tenant: str) -> Record | None:
        """The tenant's last count. A damaged one is removed, since it can be counted again; then None."""
        try:
            return await self._records.get(_BOUND, tenant)
        except Quarantined as error:
            log.warning("storage.count_removed", tenant=tenant, why=error.message)
            await self._records.delete(_BOUND, tenant)
            return None

    async def _count(self, tenant: str) -> None:
        async with self._one_at_a_time:
            try:
                before = await self._stored(tenant)
                usage = await measure(self._objects, self._clock, tenant, new_code=False)
                await self._write(tenant, count=usage, before=before)
            except WeftError as error:  # the next submission starts another count
                log.warning("storage.not_counted", tenant=tenant, why=str(error))
                return
        log.info("storage.counted", tenant=tenant, objects=usage.objects, bytes=usage.bytes)

    async def _write(
        self, tenant: str, *, add: int = 0, count: Usage | None = None, before: Record | None = None
    ) -> None:
        """Adds to the tenant's record, or replaces its count. Several processes may do so at a time.

        ``before``: the record when the count began. What was added since is not in the count, and is added to it.
        """
        for _ in range(_TRIES):
            record = await self._stored(tenant)
            if count is not None:
                size, objects = _added(before, record)
                body = {
                    "bytes": count.bytes + size,
                    "objects": count.objects + objects,
                    "counted_at": self._clock.now_ms(),
                }
            else:
                last = _body(record)
                body = {**last, "bytes": last["bytes"] + add, "objects": last["objects"] + 1}
            new = Record(kind=_BOUND, id=tenant, body=body, index={}, rev=record.rev if record is not None else 1)
            with contextlib.suppress(StaleRevision, NotFound, Duplicate):
                await (self._records.insert(new) if record is None else self._records.replace(new))
                return
        log.warning("storage.not_recorded", tenant=tenant, why="its record kept changing; the next count corrects it")


def _body(record: Record | None) -> Mapping[str, int]:
    return record.body if record is not None else {"bytes": 0, "objects": 0, "counted_at": 0}


def _added(before: Record | None, now: Record | None) -> tuple[int, int]:
    """(bytes, objects) that were added to the count of ``before``; nothing if ``now`` is of another count."""
    first, last = _body(before), _body(now)
    if first["counted_at"] != last["counted_at"]:
        return 0, 0
    return max(0, last["bytes"] - first["bytes"]), max(0, last["objects"] - first["objects"])
