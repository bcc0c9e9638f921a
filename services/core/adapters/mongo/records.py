"""RecordStore on MongoDB: one document per record, with its index fields as pairs of field and value.

records  {kind, id, rev, write, body: {...}, index: [{field, value}, ...]}     unique by (kind, id)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self

from pymongo import ASCENDING, IndexModel

from services.core.adapters.mongo.connection import Database, Document, close, connect, translated
from services.core.adapters.mongo.documents import Documents, create_indexes
from services.core.domain.codec import MALFORMED
from services.core.domain.errors import Quarantined, WeftError
from services.core.ports.record_store import Record, UnreadableRecord, check_record

_PAGE: Final = 500
_INDEXES: Final = (
    IndexModel([("kind", 1), ("id", 1)], name="kind_id", unique=True),
    # One index for all fields of all kinds.
    IndexModel([("kind", 1), ("index.field", 1), ("index.value", 1), ("id", 1)], name="fields"),
)


class MongoRecordStore:
    """See ``services.core.ports.record_store.RecordStore``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._records = Documents(database["records"])

    @classmethod
    async def open(cls, uri: str) -> Self:
        """Connects and creates missing indexes. The caller runs ``check_store``. Raises the errors of ``connect``."""
        return await cls.on(connect(uri))

    @classmethod
    async def on(cls, database: Database) -> Self:
        """As ``open``, on a connection, which it closes on failure."""
        store = cls(database)
        try:
            await create_indexes(database["records"], _INDEXES)
        except WeftError:
            await store.close()
            raise
        return store

    async def insert(self, record: Record) -> Record:
        check_record(record)
        stored = replace(record, rev=1)
        await self._records.insert(_key(record.kind, record.id), _document(stored))
        return stored

    async def get(self, kind: str, record_id: str) -> Record | None:
        document = await self._records.get(_key(kind, record_id))
        if document is None:
            return None
        try:
            return _record(document)
        except MALFORMED as error:
            raise Quarantined(f"the {kind} record {record_id} cannot be read: {error}") from error

    async def replace(self, record: Record) -> Record:
        check_record(record)
        stored = replace(record, rev=record.rev + 1)
        await self._records.replace(_key(record.kind, record.id), record.rev, _document(stored))
        return stored

    async def find(
        self, kind: str, index: Mapping[str, str], *, after: str | None = None, limit: int = 1000
    ) -> Sequence[Record]:
        pairs = [{"index": {"$elemMatch": pair}} for pair in _pairs(index)]
        records: list[Record] = []
        after = after or ""
        while len(records) < limit:
            where = {"$and": [{"kind": kind, "id": {"$gt": after}}, *pairs]}
            async with translated():
                cursor = self._records.collection.find(where).sort("id", ASCENDING)
                page = await cursor.limit(min(limit - len(records), _PAGE)).to_list()
            if not page:
                break
            records.extend(_readable(page))
            after = str(page[-1]["id"])
        return records

    async def unreadable(self) -> Sequence[UnreadableRecord]:
        unreadable: list[UnreadableRecord] = []
        where: dict[str, Any] = {}
        while True:
            async with translated():
                page = await self._records.collection.find(where).sort("_id", ASCENDING).limit(_PAGE).to_list()
            if not page:
                return unreadable
            unreadable.extend(bad for document in page if (bad := _unreadable(document)) is not None)
            where = {"_id": {"$gt": page[-1]["_id"]}}

    async def kinds(self) -> Sequence[str]:
        async with translated():
            cursor = await self._records.collection.aggregate([{"$group": {"_id": "$kind"}}])
            groups = await cursor.to_list()
        return sorted(str(group["_id"]) for group in groups)

    async def delete(self, kind: str, record_id: str) -> None:
        await self._records.delete(_key(kind, record_id))

    async def ping(self) -> None:
        async with translated():
            await self._database.command("ping")

    async def close(self) -> None:
        await close(self._database)


def _key(kind: str, record_id: str) -> dict[str, str]:
    return {"kind": kind, "id": record_id}


def _pairs(index: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"field": field, "value": value} for field, value in index.items()]


def _document(record: Record) -> Document:
    return {
        "kind": record.kind,
        "id": record.id,
        "rev": record.rev,
        "body": record.body,
        "index": _pairs(record.index),
    }


def _record(document: Mapping[str, Any]) -> Record:
    """Raises KeyError, TypeError or ValueError for a malformed document."""
    body, index = document["body"], {pair["field"]: pair["value"] for pair in document["index"]}
    kind, record_id = document["kind"], document["id"]
    if not isinstance(body, dict):
        raise TypeError("not a mapping")
    if not isinstance(kind, str) or not isinstance(record_id, str):
        raise TypeError("kind and id are text")
    return Record(kind=kind, id=record_id, body=body, index=index, rev=document["rev"])


def _unreadable(document: Mapping[str, Any]) -> UnreadableRecord | None:
    try:
        _record(document)
    except MALFORMED as error:
        return UnreadableRecord(str(document.get("kind")), str(document.get("id")), f"{type(error).__name__}: {error}")
    return None


def _readable(page: Sequence[Mapping[str, Any]]) -> list[Record]:
    """The records of the page that can be read."""
    records: list[Record] = []
    for document in page:
        try:
            records.append(_record(document))
        except MALFORMED:
            continue
    return records
