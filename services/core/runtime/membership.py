"""Membership: each service process holds one lease in the status store, and all its short-lived keys depend on it.

A restarted process revokes the lease of its predecessor at once, so a crash does not cost the TTL. When the lease is
lost (etcd away, or wiped), a new one is taken under the same member id: claims in job documents name the member and
stay valid.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import Final

import structlog

from services.core.domain.codec import MALFORMED
from services.core.domain.errors import NoSpace, WeftError
from services.core.domain.ids import RANDOM_BITS, is_id, make_id
from services.core.domain.status_keys import member_key
from services.core.ports.clock import Clock
from services.core.ports.status_store import Lease, StatusStore
from services.core.runtime.durable_files import read_json, write_json
from services.core.runtime.settings import Settings

_RETRY_S: Final = 0.2
log = structlog.get_logger()


class Membership:
    """The membership of this process: ``await start()``, use ``lease`` while it is alive, ``await leave()``."""

    def __init__(self, service: str, status: StatusStore, clock: Clock, settings: Settings) -> None:
        self.service = service
        self.id = make_id("m", now_ms=clock.now_ms(), random_bits=clock.random_bits(RANDOM_BITS))
        """The member id, new for each process."""
        self.lease: Lease | None = None
        """None while the status store does not answer."""
        self._status, self._clock, self._ttl_s = status, clock, settings.lease_ttl_s
        self._file = settings.home / "run" / f"{service}.lease.json"
        self._task: asyncio.Task[None] | None = None
        self._failing = False

    async def start(self) -> None:
        """Revokes the predecessor's lease and joins. Where etcd is away, it keeps trying in the background."""
        with contextlib.suppress(OSError, WeftError, *MALFORMED):
            document = read_json(self._file)
            if document is not None:
                await self._status.revoke_id(int(document["lease"]))
        await self._join()
        self._task = asyncio.create_task(self._keep_joined())

    async def _join(self) -> None:
        """Takes a lease and writes the member's key with it."""
        lease: Lease | None = None
        try:
            lease = await self._status.lease(self._ttl_s)
            value = json.dumps({"pid": os.getpid(), "since": self._clock.now_ms(), "schema": 1})
            await self._status.put(member_key(self.service, self.id), value, lease=lease)
        except WeftError as error:
            if lease is not None:
                await lease.revoke()  # otherwise it would be kept alive together with the next one
            if not self._failing:
                log.warning("member.join_failed", why=str(error))
            self._failing = True
            return
        self._save_lease_id(lease)
        self.lease, self._failing = lease, False
        log.info("member.joined", member=self.id)

    def _save_lease_id(self, lease: Lease) -> None:
        """Saves the id for the next process. Without it that one's work waits until the lease has run out."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._file, {"lease": lease.id}, durable=False)
        except (OSError, NoSpace) as error:
            log.warning("member.lease_not_saved", why=str(error))

    async def _keep_joined(self) -> None:
        """Joins again whenever the lease is lost, until cancelled."""
        while True:
            if self.lease is not None and self.lease.alive:
                await self.lease.lost()
                log.warning("member.lease_lost", member=self.id)
            self.lease = None
            await self._join()
            if self.lease is None:
                await self._clock.sleep(_RETRY_S)

    async def leave(self) -> None:
        """Revokes the lease, so that others need not wait until it runs out. May be called without ``start``."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self.lease is not None:
            await self.lease.revoke()


async def members(status: StatusStore, service: str) -> frozenset[str]:
    """Returns the member ids of the live processes of a service. Keys that are no member ids are ignored."""
    prefix = member_key(service, "")
    names = (entry.key.removeprefix(prefix) for entry in await status.list(prefix))
    return frozenset(name for name in names if is_id(name, "m"))
