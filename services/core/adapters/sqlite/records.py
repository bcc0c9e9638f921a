"""RecordStore in a SQLite file: a row per record, and a row per index field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import apsw

from services.core.adapters.sqlite.database import Database
from services.core.adapters.sqlite.place import MOUNTS
from services.core.domain.errors import NotFound, Quarantined, StaleRevision
from services.core.ports.record_store import Record, UnreadableRecord, check_record

_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS records(
        kind TEXT NOT NULL, id TEXT NOT NULL, rev INTEGER NOT NULL, body TEXT NOT NULL, fields TEXT NOT NULL,
        PRIMARY KEY (kind, id)
    )""",
    """CREATE TABLE IF NOT EXISTS record_index(
        kind TEXT NOT NULL, field TEXT NOT NULL, value TEXT NOT NULL, id TEXT NOT NULL,
        PRIMARY KEY (kind, field, value, id)
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS record_index_by_record ON record_index(kind, id)",
)
_FEW: Final = 50
"""Records of a result that is kept in memory at most."""
_SELECT: Final = "SELECT kind, id, rev, body, fields FROM records"


class SqliteRecordStore:
    """See ``services.core.ports.record_store.RecordStore``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    async def open(cls, path: Path, *, mounts: Path = MOUNTS) -> Self:
        """Opens or creates the file. Raises the errors of ``Database.open``."""
        return cls(await Database.open(path, title="record store", tables=_TABLES, mounts=mounts))

    async def insert(self, record: Record) -> Record:
        check_record(record)
        stored = replace(record, rev=1)
        row = _row(stored)

        def write(connection: apsw.Connection) -> Record:
            connection.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?)", row)
            _write_index(connection, stored)
            return stored

        return await self._database.write(write)

    async def get(self, kind: str, record_id: str) -> Record | None:
        def read(connection: apsw.Connection) -> Record | None:
            row = connection.execute(f"{_SELECT} WHERE kind = ? AND id = ?", (kind, record_id)).fetchone()
            return None if row is None else _record(row)

        try:
            return await self._database.read(read)
        except ValueError as error:
            raise Quarantined(f"the {kind} record {record_id} cannot be read: {error}") from error

    async def replace(self, record: Record) -> Record:
        check_record(record)
        stored = replace(record, rev=record.rev + 1)
        _, _, rev, body, fields = _row(stored)

        def write(connection: apsw.Connection) -> Record:
            connection.execute(
                "UPDATE records SET rev = ?, body = ?, fields = ? WHERE kind = ? AND id = ? AND rev = ?",
                (rev, body, fields, record.kind, record.id, record.rev),
            )
            if connection.changes() == 0:
                row = connection.execute(f"{_SELECT} WHERE kind = ? AND id = ?", (record.kind, record.id)).fetchone()
                if row is None:
                    raise NotFound(f"there is no {record.kind} {record.id}")
                raise StaleRevision(f"{record.kind} {record.id} is no longer at revision {record.rev}")
            connection.execute("DELETE FROM record_index WHERE kind = ? AND id = ?", (record.kind, record.id))
            _write_index(connection, stored)
            return stored

        return await self._database.write(write)

    async def find(
        self, kind: str, index: Mapping[str, str], *, after: str | None = None, limit: int = 1000
    ) -> Sequence[Record]:
        terms, values = ["kind = ?"], [kind]
        for field, value in index.items():
            terms.append("id IN (SELECT id FROM record_index WHERE kind = ? AND field = ? AND value = ?)")
            values += [kind, field, value]
        select = f"{_SELECT} WHERE {' AND '.join(terms)} AND id > ? ORDER BY id"

        def read(connection: apsw.Connection) -> list[Record]:
            records: list[Record] = []
            for row in connection.execute(select, (*values, after or "")):
                if len(records) == limit:
                    break
                try:
                    records.append(_record(row))
                except ValueError:
                    continue  # an unreadable record does not affect the others
            return records

        key = (select, *values, after, limit)
        records = await self._database.read_unless_unchanged(key, read, is_small=lambda page: len(page) <= _FEW)
        return list(records)

    async def unreadable(self) -> Sequence[UnreadableRecord]:
        def read(connection: apsw.Connection) -> list[UnreadableRecord]:
            rows = connection.execute(f"{_SELECT} ORDER BY kind, id")
            return [bad for row in rows if (bad := _unreadable(row)) is not None]

        return await self._database.read(read)

    async def kinds(self) -> Sequence[str]:
        def read(connection: apsw.Connection) -> list[str]:
            return [str(kind) for (kind,) in connection.execute("SELECT DISTINCT kind FROM records ORDER BY kind")]

        return await self._database.read(read)

    async def delete(self, kind: str, record_id: str) -> None:
        def write(connection: apsw.Connection) -> None:
            connection.execute("DELETE FROM record_index WHERE kind = ? AND id = ?", (kind, record_id))
            connection.execute("DELETE FROM records WHERE kind = ? AND id = ?", (kind, record_id))

        await self._database.write(write)

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        await self._database.close()


def _row(record: Record) -> tuple[str, str, int, str, str]:
    return record.kind, record.id, record.rev, json.dumps(record.body), json.dumps(record.index)


def _record(row: Any) -> Record:
    """Raises ValueError for a malformed row."""
    kind, record_id, rev, body, fields = row
    try:
        content, index = json.loads(body), json.loads(fields)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(content, dict) or not isinstance(index, dict):
        raise ValueError("not a mapping")  # noqa: TRY004 - one kind of error for all that is malformed
    return Record(kind=kind, id=record_id, body=content, index=index, rev=rev)


def _unreadable(row: Any) -> UnreadableRecord | None:
    try:
        _record(row)
    except ValueError as error:
        return UnreadableRecord(str(row[0]), str(row[1]), str(error))
    return None


def _write_index(connection: apsw.Connection, record: Record) -> None:
    connection.executemany(
        "INSERT INTO record_index VALUES (?, ?, ?, ?)",
        [(record.kind, field, value, record.id) for field, value in record.index.items()],
    )
