"""RecordStore in memory. Records are stored as JSON text, so that a caller cannot change them by accident."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from services.core.domain.errors import Duplicate, NotFound, StaleRevision
from services.core.ports.record_store import Record, UnreadableRecord, check_record


class MemoryRecordStore:
    """See ``services.core.ports.record_store.RecordStore``."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], tuple[int, str, dict[str, str]]] = {}

    async def insert(self, record: Record) -> Record:
        check_record(record)
        if (record.kind, record.id) in self._records:
            raise Duplicate(f"there is a {record.kind} {record.id}")
        return self._write(record, 1)

    async def get(self, kind: str, record_id: str) -> Record | None:
        stored = self._records.get((kind, record_id))
        if stored is None:
            return None
        rev, body, index = stored
        return Record(kind=kind, id=record_id, body=json.loads(body), index=dict(index), rev=rev)

    async def replace(self, record: Record) -> Record:
        check_record(record)
        stored = self._records.get((record.kind, record.id))
        if stored is None:
            raise NotFound(f"there is no {record.kind} {record.id}")
        if stored[0] != record.rev:
            raise StaleRevision(f"{record.kind} {record.id} is no longer at revision {record.rev}")
        return self._write(record, record.rev + 1)

    async def find(
        self, kind: str, index: Mapping[str, str], *, after: str | None = None, limit: int = 1000
    ) -> Sequence[Record]:
        ids = sorted(
            record_id
            for (of_kind, record_id), (_, _, fields) in self._records.items()
            if of_kind == kind and record_id > (after or "") and index.items() <= fields.items()
        )
        records = [await self.get(kind, record_id) for record_id in ids[:limit]]
        return [record for record in records if record is not None]

    async def unreadable(self) -> Sequence[UnreadableRecord]:
        return []  # every record was written by this class

    async def kinds(self) -> Sequence[str]:
        return sorted({kind for kind, _ in self._records})

    async def delete(self, kind: str, record_id: str) -> None:
        self._records.pop((kind, record_id), None)

    async def ping(self) -> None: ...

    async def close(self) -> None: ...

    def _write(self, record: Record, rev: int) -> Record:
        self._records[record.kind, record.id] = (rev, json.dumps(record.body), dict(record.index))
        return replace(record, rev=rev)
