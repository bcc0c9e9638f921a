"""JobStore in a SQLite file: one row per document.

SQLite computes the columns of queries (tenant, status, ...) from the document, so they cannot disagree with it. They
are NULL if a document is not JSON, and no query matches NULL: a bad row affects only its own job. The other columns
must be valid even in a bad row: the id, the revision and the idempotency key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import apsw

from services.core.adapters.sqlite.database import Database
from services.core.adapters.sqlite.place import MOUNTS
from services.core.domain.codec import dump, load
from services.core.domain.document import read_job
from services.core.domain.errors import InvalidRequest, NotFound, Quarantined, StaleRevision, WeftError
from services.core.domain.job import SCHEMA, Event, Job, check_replace
from services.core.domain.status import Status
from services.core.ports.job_store import DispatcherDoc, JobQuery, Unreadable, job_or_unreadable, with_stored_rev

_PAGE: Final = 500
"""Documents read at once, so that a long list delays other readers only shortly."""


_COMPUTED: Final = {
    "schema INTEGER": "coalesce(doc->>'$.schema', 1)",
    "tenant TEXT": "doc->>'$.tenant'",
    "user TEXT": "doc->>'$.user'",
    "name TEXT": "doc->>'$.spec.name'",
    "tags TEXT": "doc->'$.spec.tags'",
    "status TEXT": "doc->>'$.state.status'",
    "holder TEXT": "coalesce(doc->>'$.guardian.holder', '')",
    "holds INTEGER": "coalesce(doc->>'$.attempt.number', 0) > 0 AND doc->>'$.released' IS NULL",
    "tail INTEGER": "coalesce(json_array_length(doc, '$.history_tail'), 0) > 0",
    "deleted INTEGER": "doc->>'$.deleted' IS NOT NULL",
}
# json_valid(.., 2) accepts JSON5: Python writes NaN, which a summary may contain.
_COLUMNS: Final = ", ".join(
    f"{column} AS (CASE WHEN json_valid(doc, 2) THEN {expression} END) STORED"
    for column, expression in _COMPUTED.items()
)
_TABLES: Final = (
    f"""CREATE TABLE IF NOT EXISTS jobs(
        id TEXT PRIMARY KEY NOT NULL, rev INTEGER NOT NULL, idem TEXT UNIQUE NOT NULL, doc TEXT NOT NULL, {_COLUMNS}
    )""",
    "CREATE INDEX IF NOT EXISTS jobs_by_tenant ON jobs(tenant, deleted, status, id)",
    "CREATE INDEX IF NOT EXISTS jobs_by_status ON jobs(status, id)",
    "CREATE INDEX IF NOT EXISTS jobs_holding ON jobs(holder, id) WHERE holds",
    "CREATE INDEX IF NOT EXISTS jobs_untrimmed ON jobs(id) WHERE tail",
    """CREATE TABLE IF NOT EXISTS history(
        job TEXT NOT NULL, seq INTEGER NOT NULL, tenant TEXT NOT NULL, event TEXT NOT NULL, PRIMARY KEY (job, seq)
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS dispatcher(
        one INTEGER PRIMARY KEY CHECK (one = 1), term INTEGER NOT NULL, holder TEXT NOT NULL, rev INTEGER NOT NULL
    )""",
)


class SqliteJobStore:
    """See ``services.core.ports.job_store.JobStore``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    async def open(cls, path: Path, *, mounts: Path = MOUNTS) -> Self:
        """Opens or creates the file. Raises the errors of ``Database.open``."""
        return cls(await Database.open(path, title="job store", tables=_TABLES, mounts=mounts))

    async def insert(self, job: Job) -> Job:
        stored = replace(job, rev=1)
        row = (stored.id, stored.rev, stored.idem, _text(stored))

        def write(connection: apsw.Connection) -> Job:
            connection.execute("INSERT INTO jobs(id, rev, idem, doc) VALUES (?, ?, ?, ?)", row)
            return stored

        return await self._database.write(write)

    async def get(self, job_id: str) -> Job | None:
        return await self._find_one("id", job_id)

    async def by_idem(self, idem: str) -> Job | None:
        return await self._find_one("idem", idem)

    async def _find_one(self, column: str, value: str) -> Job | None:
        def read(connection: apsw.Connection) -> Job | None:
            row = connection.execute(f"SELECT id, doc, rev FROM jobs WHERE {column} = ?", (value,)).fetchone()  # noqa: S608
            return None if row is None else with_stored_rev(_job(str(row[0]), str(row[1])), row[2])

        return await self._database.read(read)

    async def replace(self, prior: Job, new: Job) -> Job:
        check_replace(prior, new)
        stored = replace(new, rev=prior.rev + 1)
        row = (stored.rev, _text(stored), prior.id, prior.rev)

        def write(connection: apsw.Connection) -> Job:
            connection.execute("UPDATE jobs SET rev = ?, doc = ? WHERE id = ? AND rev = ?", row)
            if connection.changes() == 0:
                raise _refusal(connection, prior)
            return stored

        return await self._database.write(write)

    async def find(
        self,
        query: JobQuery,
        *,
        newest_first: bool = True,
        limit: int = 100,
        left_out: list[Unreadable] | None = None,
    ) -> Sequence[Job]:
        jobs: list[Job] = []
        after = query.after
        while len(jobs) < limit:
            # Unreadable documents do not count: a short page would look like the end of the list.
            page = await self._page(query, after, newest_first=newest_first, limit=min(limit - len(jobs), _PAGE))
            jobs.extend(job for job in page if isinstance(job, Job))
            if left_out is not None:
                left_out.extend(bad for bad in page if isinstance(bad, Unreadable))
            if not page:
                break
            after = page[-1].id
        return jobs

    async def _page(
        self, query: JobQuery, after: str | None, *, newest_first: bool, limit: int
    ) -> list[Job | Unreadable]:
        where, values = _where(query)
        if after is not None:
            where, values = f"{where} AND id {'<' if newest_first else '>'} ?", [*values, after]
        return await self._judged(where, values, "DESC" if newest_first else "ASC", limit)

    async def _judged(self, where: str, values: Sequence[str], order: str, limit: int) -> list[Job | Unreadable]:
        select = f"SELECT id, doc, rev FROM jobs WHERE {where} ORDER BY id {order} LIMIT ?"  # noqa: S608 - our text

        def read(connection: apsw.Connection) -> list[Job | Unreadable]:
            rows = connection.execute(select, (*values, limit))
            return [_readable(str(job_id), str(doc), rev) for job_id, doc, rev in rows]

        return await self._database.read(read)

    async def count(self, query: JobQuery) -> Mapping[Status, int]:
        where, values = _where(query)
        select = f"SELECT status, count(*) FROM jobs WHERE {where} AND schema <= ? GROUP BY status"  # noqa: S608

        def read(connection: apsw.Connection) -> dict[Status, int]:
            rows = connection.execute(select, (*values, SCHEMA))
            return {Status(status): int(str(count)) for status, count in rows if status in set(Status)}

        return await self._database.read(read)

    async def unreadable(self, *, after: str = "", limit: int = _PAGE) -> tuple[Sequence[Unreadable], str]:
        page = await self._judged("id > ?", (after,), "ASC", limit)
        return [bad for bad in page if isinstance(bad, Unreadable)], page[-1].id if len(page) == limit else ""

    async def delete(self, job_id: str) -> None:
        def write(connection: apsw.Connection) -> None:
            connection.execute("DELETE FROM history WHERE job = ?", (job_id,))
            connection.execute("DELETE FROM jobs WHERE id = ?", (job_id,))

        await self._database.write(write)

    async def append_history(self, job_id: str, tenant: str, events: Sequence[Event]) -> None:
        rows = [(job_id, event.seq, tenant, json.dumps(dump(event))) for event in events]

        def write(connection: apsw.Connection) -> None:
            connection.executemany("INSERT OR IGNORE INTO history VALUES (?, ?, ?, ?)", rows)

        await self._database.write(write)

    async def history(self, job_id: str, *, after_seq: int = 0, limit: int = 1000) -> Sequence[Event]:
        def read(connection: apsw.Connection) -> list[Event]:
            rows = connection.execute(
                "SELECT event FROM history WHERE job = ? AND seq > ? ORDER BY seq LIMIT ?", (job_id, after_seq, limit)
            )
            events = [_event(str(text)) for (text,) in rows]
            return [event for event in events if event is not None]

        return await self._database.read(read)

    async def dispatcher(self) -> DispatcherDoc:
        return await self._database.read(_dispatcher)

    async def replace_dispatcher(self, prior: DispatcherDoc, new: DispatcherDoc) -> DispatcherDoc:
        stored = replace(new, rev=prior.rev + 1)

        def write(connection: apsw.Connection) -> DispatcherDoc:
            stored_now = _dispatcher(connection)
            if stored_now.rev != prior.rev:
                raise StaleRevision(f"the dispatcher's document is at revision {stored_now.rev}, not {prior.rev}")
            connection.execute(
                "INSERT OR REPLACE INTO dispatcher VALUES (1, ?, ?, ?)", (stored.term, stored.holder, stored.rev)
            )
            return stored

        return await self._database.write(write)

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        await self._database.close()


def _text(job: Job) -> str:
    try:
        return json.dumps(dump(job), separators=(",", ":"))
    except RecursionError:
        raise InvalidRequest("the document of a job is nested too deeply to be stored") from None


def _job(job_id: str, text: str) -> Job:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Quarantined(f"the document of job {job_id} is not JSON: {error}") from error
    return read_job(job_id, document)


def _readable(job_id: str, text: str, rev: object) -> Job | Unreadable:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Unreadable(id=job_id, why=f"the document of job {job_id} is not JSON: {error}")
    return job_or_unreadable(job_id, document, rev)


def _event(text: str) -> Event | None:
    try:
        return load(Event, json.loads(text))
    except (TypeError, ValueError, RecursionError):
        return None


def _refusal(connection: apsw.Connection, prior: Job) -> WeftError:
    row = connection.execute("SELECT rev FROM jobs WHERE id = ?", (prior.id,)).fetchone()
    if row is None:
        return NotFound(f"there is no job {prior.id}")
    return StaleRevision(f"job {prior.id} is at revision {row[0]}, not {prior.rev}")


def _dispatcher(connection: apsw.Connection) -> DispatcherDoc:
    row: Any = connection.execute("SELECT term, holder, rev FROM dispatcher").fetchone()
    return DispatcherDoc() if row is None else DispatcherDoc(term=row[0], holder=row[1], rev=row[2])


def _where(query: JobQuery) -> tuple[str, list[str]]:
    """SQL of a query's filter and its values, without its cursor.

    ``holds`` and ``tail`` are written literally; otherwise SQLite would not use their partial indexes.
    """
    terms = ["status IS NOT NULL"]
    values: list[str] = []
    for column, value in (
        ("tenant", query.tenant), ("user", query.user), ("holder", query.holder), ("name", query.name),
    ):  # fmt: skip
        if value is not None:
            terms.append(f"{column} = ?")
            values.append(value)
    if query.statuses:
        terms.append(f"status IN ({', '.join('?' * len(query.statuses))})")
        values.extend(query.statuses)
    if query.tag is not None:
        terms.append("EXISTS (SELECT 1 FROM json_each(jobs.tags) WHERE value = ?)")
        values.append(query.tag)
    if query.holding is not None:
        terms.append("holds" if query.holding else "NOT holds")
    if query.untrimmed:
        terms.append("tail")
    if not query.deleted:
        terms.append("deleted = 0")
    return " AND ".join(terms), values
