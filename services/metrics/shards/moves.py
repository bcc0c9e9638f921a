"""Fetches the jobs that another shard stored before the number of shards was changed.

A former owner runs with the same numbers as this shard (``Agreement``) and takes in nothing for these jobs. So its list
of them is final. A job is served here only after the former owner has removed it: a crash before that repeats the
fetch, and nothing was taken in here that the repetition would overwrite.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import structlog
from prometheus_client import Gauge

from services.core.adapters.rpc.client import streaming, translating
from services.core.domain.errors import NotFound, Unavailable, WeftError
from services.core.domain.shards import Shards
from services.core.gen.weft.v1 import metrics_pb2 as pb
from services.core.ports.metric_store import FilePart, MetricStore
from services.metrics.shards.agreement import Agreement, numbers_message
from services.metrics.shards.siblings import Sibling
from services.metrics.shards.volume import Agreed

_AGAIN_S: Final = 1.0
_LIST_S: Final = 300.0
_FETCH_S: Final = 3600.0
"""A job of tens of gigabytes on a slow network."""
_RELEASE_S: Final = 60.0
log = structlog.get_logger()


class Moves:
    """``await ensure(job_id)`` before each use of a job in the store."""

    def __init__(self, shards: Shards, shard: int, agreement: Agreement, store: MetricStore, moving: Gauge) -> None:
        """``shard``: the number of this one. ``moving``: the number of jobs that have still to be fetched."""
        self._shards, self._shard, self._agreement = shards, shard, agreement
        self._siblings, self._volume, self._clock = agreement.siblings, agreement.volume, agreement.clock
        self._store, self._moving = store, moving
        agreed = self._volume.read()
        is_moved = agreed is not None and agreed.shards == shards and agreed.moved
        former = range(shards.before or 0)
        self._unlisted = set[int]() if is_moved or shards.before is None else {s for s in former if s != shard}
        self._pending: dict[str, int] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}

    async def ensure(self, job_id: str) -> None:
        """Returns once all that is stored of the job is in this shard's store.

        Raises Unavailable if the former owner does not answer, NoSpace and the like if the job cannot be stored.
        """
        former = self._shards.former_owner(job_id)
        if former is None or former == self._shard:
            return
        if former in self._unlisted:
            raise Unavailable(f"shard {former} of the metrics service has not said yet what it stores", retry_after_s=1)
        if job_id not in self._pending:
            return
        task = self._fetching.get(job_id)
        if task is None:
            task = self._fetching[job_id] = asyncio.create_task(self._fetch(job_id))
            task.add_done_callback(lambda _: self._fetching.pop(job_id, None))
            task.add_done_callback(_retrieved)
        await asyncio.shield(task)

    async def complete(self) -> None:
        """Waits for the agreement. Then lists and fetches all jobs, and repeats what fails, until none is missing."""
        await self._agreement.reach()
        if self._shards.before is None:
            return
        while self._unlisted or self._pending:
            for former in sorted(self._unlisted):
                await self._list(self._siblings[former])
            for job_id in list(self._pending):
                try:
                    await self.ensure(job_id)
                except WeftError as error:
                    log.warning("shards.move_failed", job=job_id, why=error.message)
                    if (shard := self._pending.pop(job_id, None)) is not None:
                        self._pending[job_id] = shard  # last: it does not hold up the others
                    break
            if self._unlisted or self._pending:
                await self._clock.sleep(_AGAIN_S)
        while not self._volume.record(Agreed(self._shards.count, self._shards.before, moved=True)):
            await self._clock.sleep(_AGAIN_S)
        log.info("shards.moved", count=self._shards.count, before=self._shards.before)

    async def _list(self, sibling: Sibling) -> None:
        request = pb.ListMovingRequest(numbers=numbers_message(self._shards), shard=self._shard)
        pending: dict[str, int] = {}
        try:
            async with aclosing(streaming(sibling.shards.ListMoving(request, timeout=_LIST_S))) as replies:
                async for reply in replies:
                    pending |= dict.fromkeys(reply.job_ids, sibling.shard)
        except WeftError as error:
            log.warning("shards.list_failed", shard=sibling.shard, why=error.message)
            return
        self._pending |= pending
        self._unlisted.discard(sibling.shard)
        self._moving.set(len(self._pending))
        log.info("shards.listed", shard=sibling.shard, jobs=len(pending))

    async def _fetch(self, job_id: str) -> None:
        sibling = self._siblings[self._pending[job_id]]
        with contextlib.suppress(NotFound):  # an earlier try has fetched it, and the reply to its release was lost
            await self._store.load_files(job_id, _parts(sibling, job_id))
        with translating(f"shard {sibling.shard}"):
            await sibling.shards.Release(pb.ReleaseRequest(job_id=job_id), timeout=_RELEASE_S)
        del self._pending[job_id]
        self._moving.set(len(self._pending))
        log.info("job.moved", job=job_id, shard=sibling.shard)


def _retrieved(task: asyncio.Task[None]) -> None:
    """All callers that waited may have left: asyncio shall not report its error as overlooked."""
    if not task.cancelled():
        task.exception()


async def _parts(sibling: Sibling, job_id: str) -> AsyncGenerator[FilePart]:
    call = sibling.shards.ReadFiles(pb.ReadFilesRequest(job_id=job_id), timeout=_FETCH_S)
    async with aclosing(streaming(call)) as messages:
        async for message in messages:
            yield FilePart(message.name, message.data)
