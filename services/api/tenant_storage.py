"""How much a tenant stores in the object store, and the bound on it.

Usage is counted by listing the tenant's objects, a page at a time, in the background. It is kept in a record, so a
restart counts nothing anew. Between two counts the code that is uploaded is added; results of jobs are in the next
count. A submission starts a count when the last one is older than ``count_s``: a silent tenant costs nothing. Tenants
are counted one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import structlog

from services.core.domain.errors import Duplicate, NoSpace, NotFound, StaleRevision, WeftError
from services.core.ports.clock import Clock
from services.core.ports.object_store import ObjectStore
from services.core.ports.record_store import Record, RecordStore

KIND: Final = "storage"
_PAGE: Final = 1_000
_TRIES: Final = 5
log = structlog.get_logger()


class TenantStorage:
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
        record = await self._records.get(KIND, tenant)
        counted_at, used = (record.body["counted_at"], record.body["bytes"]) if record is not None else (0, 0)
        if self._clock.now_ms() - counted_at > self._count_ms and tenant not in self._counting:
            task = self._counting[tenant] = asyncio.create_task(self._count(tenant))
            task.add_done_callback(lambda _: self._counting.pop(tenant, None))
        if used + more > self._most:
            raise NoSpace(
                f"tenant {tenant} stores {used} bytes of at most {self._most} (WEFT_TENANT_BYTES); have the operator "
                "remove the data of old jobs, or raise the limit"
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

    async def _count(self, tenant: str) -> None:
        async with self._one_at_a_time:
            try:
                count, used, after = 0, 0, None
                while page := await self._objects.list(f"tenants/{tenant}/", after=after, limit=_PAGE):
                    count, used, after = count + len(page), used + sum(meta.size for meta in page), page[-1].key
                await self._write(tenant, used=used, objects=count)
            except WeftError as error:  # the next submission starts another count
                log.warning("storage.not_counted", tenant=tenant, why=str(error))
                return
        log.info("storage.counted", tenant=tenant, objects=count, bytes=used)

    async def _write(self, tenant: str, *, add: int = 0, used: int | None = None, objects: int = 0) -> None:
        """Adds to the tenant's record, or replaces its count. Several processes may do so at a time."""
        for _ in range(_TRIES):
            record = await self._records.get(KIND, tenant)
            if used is not None:
                body = {"bytes": used, "objects": objects, "counted_at": self._clock.now_ms()}
            else:
                before = record.body if record is not None else {"bytes": 0, "objects": 0, "counted_at": 0}
                body = {**before, "bytes": before["bytes"] + add, "objects": before["objects"] + 1}
            new = Record(kind=KIND, id=tenant, body=body, index={}, rev=record.rev if record is not None else 1)
            with contextlib.suppress(StaleRevision, NotFound, Duplicate):
                await (self._records.insert(new) if record is None else self._records.replace(new))
                return
        log.warning("storage.not_recorded", tenant=tenant, why="its record kept changing; the next count corrects it")
