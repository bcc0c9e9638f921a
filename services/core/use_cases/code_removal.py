"""Serializes submissions and the removal of code, which is shared by digest: no job loses the code that it names.

Each candidate for removal has a record. The remover marks it, and waits for ``grace_ms``. A submission claims the code
before it checks that the code is stored, and inserts its document within ``CLAIM_S``, which is much shorter.

    marked --claim--> kept                 a submission names the code, or is about to
    marked --begin--> removing --> gone    after the grace time, while no job names it

Both are compare-and-set on the record, so one of them wins. A submission that claimed before the mark has its document
in the store when the grace time ends, and the remover sees it. One that meets ``removing`` has to wait a moment, and
then stores the code again (docs/adr/0018-history-and-deletion.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from services.core.domain.errors import Duplicate, NotFound, StaleRevision, Unavailable
from services.core.ports.record_store import Record, RecordStore

KIND: Final = "code-removal"
CLAIM_S: Final = 60.0
"""How long a claim is good for, in seconds."""
_MARKED, _KEPT, _REMOVING = "marked", "kept", "removing"
_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class Candidate:
    """Code that may be removed."""

    tenant: str
    digest: str
    """``sha256:<hex>``."""
    record: Record

    @property
    def removing(self) -> bool:
        """Its removal has begun: no submission can keep it any more."""
        return self.record.body.get("state") == _REMOVING

    @property
    def since(self) -> int:
        """When it was marked or claimed, in Unix ms."""
        since = self.record.body.get("since")
        return since if isinstance(since, int) else 0


def code_key(tenant: str, digest: str) -> str:
    """Returns the key of a tenant's code in the object store. ``digest``: ``sha256:<hex>``."""
    return f"tenants/{tenant}/code/{digest.removeprefix('sha256:')}"


async def mark(records: RecordStore, tenant: str, digest: str, *, now: int) -> None:
    """Makes the code a candidate, if it is none. It may be called again and again."""
    body = _body(_MARKED, now, tenant, digest)
    try:
        await records.insert(Record(kind=KIND, id=_id(tenant, digest), body=body, index={}))
    except Duplicate:
        return


async def claim(records: RecordStore, tenant: str, digest: str, *, now: int) -> None:
    """Keeps the code from being removed for the next ``CLAIM_S``. Call it before checking that the code is stored.

    Raises Unavailable while the code is being removed: a moment later it can be stored again.
    """
    for _ in range(_TRIES):
        record = await records.get(KIND, _id(tenant, digest))
        if record is None:
            return
        if record.body.get("state") == _REMOVING:
            raise Unavailable("this code is just being removed; send it again in a moment", retry_after_s=1)
        if await _replace(records, replace(record, body=_body(_KEPT, now, tenant, digest))):
            return
    raise StaleRevision("the record of this code kept changing")


async def candidates(records: RecordStore, *, after: str | None, limit: int) -> Sequence[Candidate]:
    """Returns the next candidates by the id of their records. Malformed records are removed."""
    page = await records.find(KIND, {}, after=after, limit=limit)
    readable: list[Candidate] = []
    for record in page:
        tenant, digest = record.body.get("tenant"), record.body.get("digest")
        if isinstance(tenant, str) and isinstance(digest, str) and record.id == _id(tenant, digest):
            readable.append(Candidate(tenant, digest, record))
        else:
            await records.delete(KIND, record.id)
    return readable


async def begin(records: RecordStore, candidate: Candidate, *, now: int) -> bool:
    """Returns True if the code may be removed now: no submission has claimed it since the candidate was read."""
    body = _body(_REMOVING, now, candidate.tenant, candidate.digest)
    return await _replace(records, replace(candidate.record, body=body))


async def finish(records: RecordStore, candidate: Candidate) -> None:
    """Ends the candidacy: the code is gone, or a job names it."""
    await records.delete(KIND, candidate.record.id)


def _id(tenant: str, digest: str) -> str:
    return f"{tenant}/{digest}"


def _body(state: str, since: int, tenant: str, digest: str) -> dict[str, Any]:
    return {"state": state, "since": since, "tenant": tenant, "digest": digest}


async def _replace(records: RecordStore, record: Record) -> bool:
    """Returns False if the record was changed or removed since it was read."""
    try:
        await records.replace(record)
    except (StaleRevision, NotFound):
        return False
    return True
