"""Idempotency keys of halt, resume and kill: the same request under the same key acts once, for seven days.

Two places record a key:

* Its record binds it to one request before anything is done: from then on another request under it is a mismatch.
* The job's document holds the keys of its latest changes, written in the same replace as the change. So a process that
  dies anywhere leaves both the change and its key, or neither.

The document stays small: before a key leaves it, the key's record is marked as done. A reader that reads the document
first and the record second therefore finds every key whose change was made. Submissions keep their key in their
document for ever (``submit``), and API keys are derived from theirs (``keys``): neither needs a record.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from services.api.access import Principal
from services.core.domain.errors import (
    Duplicate,
    IdempotencyMismatch,
    InvalidRequest,
    NotFound,
    StaleRevision,
    WeftError,
)
from services.core.ports.clock import Clock
from services.core.ports.record_store import Record, RecordStore

KIND: Final = "answers"
KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""A key is valid for seven days."""
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_TRIES: Final = 10
log = structlog.get_logger()


def checked_key(key: str | None) -> str | None:
    """The key, if it is well-formed. Raises InvalidRequest."""
    if key is not None and _KEY.fullmatch(key) is None:
        raise InvalidRequest("an Idempotency-Key has 1 to 255 visible ASCII characters")
    return key


def stored_key(principal: Principal, key: str) -> str:
    """The id under which the key is stored. Two users may use the same key."""
    return hashlib.sha256(f"{principal.tenant}/{principal.user}/{key}".encode()).hexdigest()


def request_digest(request: Mapping[str, Any]) -> str:
    """Equal for two equal requests."""
    text = json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class IdempotencyKeys:
    """The records of the keys. ``key`` is ``stored_key``'s."""

    def __init__(self, records: RecordStore, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._swept = ""

    async def bind(self, key: str, request: str) -> None:
        """Binds the key to the request of this digest. Raises IdempotencyMismatch if it is bound to another."""
        record = Record(
            kind=KIND, id=key, body={"request": request, "time": self._clock.now_ms(), "done": False}, index={}
        )
        for _ in range(_TRIES):
            try:
                await self._records.insert(record)
            except Duplicate:
                existing = await self._records.get(KIND, key)
            else:
                return
            if existing is not None and self._is_valid(existing):
                if existing.body["request"] != request:
                    raise IdempotencyMismatch("this Idempotency-Key was used before, with another request")
                return
            if existing is not None and await self._replace(replace(record, rev=existing.rev)):
                return
        raise StaleRevision("the record of this Idempotency-Key kept changing")

    async def is_done(self, key: str) -> bool:
        """True if the key's change was made and the key has left the job's document."""
        record = await self._records.get(KIND, key)
        return record is not None and self._is_valid(record) and record.body["done"] is True

    async def mark_done(self, key: str) -> None:
        """Records that the key's change was made. Call it before the key leaves the job's document."""
        while (record := await self._records.get(KIND, key)) is not None and record.body["done"] is not True:
            if await self._replace(replace(record, body={**record.body, "done": True})):
                return

    async def sweep(self, *, limit: int) -> int:
        """Removes the expired ones of the next ``limit`` records; returns how many. After the last it starts again."""
        page = await self._records.find(KIND, {}, after=self._swept or None, limit=limit)
        self._swept = page[-1].id if len(page) == limit else ""
        expired = [record.id for record in page if not self._is_valid(record)]
        for key in expired:
            await self._records.delete(KIND, key)
        return len(expired)

    async def keep_swept(self, *, every_s: float, limit: int) -> None:
        """Sweeps ``limit`` records every ``every_s`` seconds, until cancelled."""
        while True:
            await self._clock.sleep(every_s)
            try:
                await self.sweep(limit=limit)
            except WeftError as error:
                log.warning("idempotency_keys.sweep_failed", error=error.message)

    def _is_valid(self, record: Record) -> bool:
        """False for an expired record, and for one that cannot be read: it binds its key to nothing."""
        body = record.body
        time, request, done = body.get("time"), body.get("request"), body.get("done")
        if not isinstance(time, int) or not isinstance(request, str) or not isinstance(done, bool):
            return False
        return self._clock.now_ms() - time < KEPT_MS

    async def _replace(self, record: Record) -> bool:
        """False if another process changed or removed the record first."""
        try:
            await self._records.replace(record)
        except (StaleRevision, NotFound):
            return False
        return True
