"""Who is alive: each service process holds one lease, and every short-lived key of its hangs on it.

A process that restarts revokes its own former lease at once, so a crash costs its successors no TTL. When the lease is
lost (etcd away, or wiped) a new one is taken under the same member id: claims in job documents stay valid, for the
documents are the truth.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import Final

import structlog

from services.core.domain.errors import WeftError
from services.core.domain.ids import RANDOM_BITS, is_id, make_id
from services.core.ports.clock import Clock
from services.core.ports.status_store import Lease, StatusStore
from services.core.runtime.settings import Settings

MEMBERS: Final = "/members/"
_RETRY_S: Final = 0.2
log = structlog.get_logger()


def member_key(service: str, member: str) -> str:
    """Where a process says that it lives."""
    return f"{MEMBERS}{service}/{member}"


class Membership:
    """``await start()``, use ``lease`` while it is alive, ``await leave()``."""

    def __init__(self, service: str, status: StatusStore, clock: Clock, settings: Settings) -> None:
        self.service = service
        self.id = make_id("m", now_ms=clock.now_ms(), random_bits=clock.random_bits(RANDOM_BITS))
        self.lease: Lease | None = None
        self._status, self._clock, self._ttl_s = status, clock, settings.lease_ttl_s
        self._file = settings.home / "run" / f"{service}.lease.json"
        self._task: asyncio.Task[None] | None = None
        self._failing = False

    async def start(self) -> None:
        """Revokes the former process's lease, then joins; goes on trying in the background where etcd is away."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, WeftError):
            await self._status.revoke_id(int(json.loads(self._file.read_text())["lease"]))
        await self._join()
        self._task = asyncio.create_task(self._stay())

    async def _join(self) -> None:
        lease: Lease | None = None
        try:
            lease = await self._status.lease(self._ttl_s)
            value = json.dumps({"pid": os.getpid(), "since": self._clock.now_ms(), "schema": 1})
            await self._status.put(member_key(self.service, self.id), value, lease=lease)
        except WeftError as error:
            if lease is not None:
                await lease.revoke()  # else it would be kept alive beside the next one
            if not self._failing:
                log.warning("member.cannot_join", why=str(error))
            self._failing = True
            return
        self._remember(lease)
        self.lease, self._failing = lease, False
        log.info("member.joined", member=self.id)

    def _remember(self, lease: Lease) -> None:
        """For the process after us. Without it that one waits until the lease has run out, and that is all."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(json.dumps({"lease": lease.id}))
        except OSError as error:
            log.warning("member.lease_not_remembered", why=str(error))

    async def _stay(self) -> None:
        while True:
            if self.lease is not None and self.lease.alive:
                await self.lease.lost()
                log.warning("member.lease_lost", member=self.id)
            self.lease = None
            await self._join()
            if self.lease is None:
                await self._clock.sleep(_RETRY_S)

    async def leave(self) -> None:
        """Gives the lease back, so that others need not wait for its end."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self.lease is not None:
            await self.lease.revoke()


async def members(status: StatusStore, service: str) -> frozenset[str]:
    """Ids of the live processes of a service. A key that is no member's makes nobody alive."""
    prefix = member_key(service, "")
    found = (entry.key.removeprefix(prefix) for entry in await status.list(prefix))
    return frozenset(member for member in found if is_id(member, "m"))
