"""Idempotency keys of what changes a job that is there: the same request under the same key acts once, for seven days.

Two things say that a request was carried out, and each is written where it cannot be wrong:

* The key's record binds it to one request before anything is done: another request under it is a mismatch from then on.
* The job's document holds the keys of its latest wishes, in the very replace that carried them out. So a process that
  dies anywhere leaves either both the change and its key, or neither.

The document stays small: before a key is pushed out of it, its record is marked as done. Who reads the document first
and the record after therefore finds the key in one of them, if it was ever carried out. Submissions keep their key in
their document for ever (``submit``), new API keys are made from theirs (``keys``): neither needs a record.
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
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_TRIES: Final = 10
log = structlog.get_logger()


def checked_key(key: str | None) -> str | None:
    """An Idempotency-Key as it may be stored. InvalidRequest."""
    if key is not None and _KEY.fullmatch(key) is None:
        raise InvalidRequest("an Idempotency-Key has 1 to 255 visible ASCII characters")
    return key


def origin_of(principal: Principal, key: str) -> str:
    """What the key is kept as: each user has keys of their own."""
    return hashlib.sha256(f"{principal.tenant}/{principal.user}/{key}".encode()).hexdigest()


def digest_of(request: Mapping[str, Any]) -> str:
    """By which two requests are known to be the same."""
    text = json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Answers:
    """The keys' records. ``origin`` is ``origin_of``'s."""

    def __init__(self, records: RecordStore, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._swept = ""

    async def bind(self, origin: str, request: str) -> None:
        """From now on the key stands for the request of this digest. IdempotencyMismatch: it stands for another."""
        fresh = Record(
            kind=KIND, id=origin, body={"request": request, "time": self._clock.now_ms(), "done": False}, index={}
        )
        for _ in range(_TRIES):
            try:
                await self._records.insert(fresh)
            except Duplicate:
                there = await self._records.get(KIND, origin)
            else:
                return
            if there is not None and self._lives(there):
                if there.body["request"] != request:
                    raise IdempotencyMismatch("this Idempotency-Key came before, with another request")
                return
            if there is not None and await self._replaced(replace(fresh, rev=there.rev)):
                return
        raise StaleRevision("the record of this Idempotency-Key kept changing")

    async def done(self, origin: str) -> bool:
        """Whether it was carried out, though no document says so any more."""
        there = await self._records.get(KIND, origin)
        return there is not None and self._lives(there) and there.body["done"] is True

    async def finish(self, origin: str) -> None:
        """Marks it as done."""
        while (there := await self._records.get(KIND, origin)) is not None and there.body["done"] is not True:
            if await self._replaced(replace(there, body={**there.body, "done": True})):
                return

    async def sweep(self, *, limit: int) -> int:
        """Looks at the next ``limit`` records and removes those that have expired; how many. Begins anew at the end."""
        page = await self._records.find(KIND, {}, after=self._swept or None, limit=limit)
        self._swept = page[-1].id if len(page) == limit else ""
        expired = [record.id for record in page if not self._lives(record)]
        for origin in expired:
            await self._records.delete(KIND, origin)
        return len(expired)

    async def keep_swept(self, *, every_s: float, limit: int) -> None:
        """For ever; cancel it."""
        while True:
            await self._clock.sleep(every_s)
            try:
                await self.sweep(limit=limit)
            except WeftError as away:
                log.warning("answers.not_swept", why=away.message)

    def _lives(self, record: Record) -> bool:
        """Not of one that cannot be read either: it stands for nothing, and may be made anew."""
        body = record.body
        time, request, done = body.get("time"), body.get("request"), body.get("done")
        if not isinstance(time, int) or not isinstance(request, str) or not isinstance(done, bool):
            return False
        return self._clock.now_ms() - time < KEPT_MS

    async def _replaced(self, record: Record) -> bool:
        try:
            await self._records.replace(record)
        except (StaleRevision, NotFound):
            return False
        return True
