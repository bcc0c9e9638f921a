"""JobStore in a SQLite file: one row per document. Tables, indexes and queries: ``job_tables``."""

from __future__ import annotations

import heapq
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

import apsw

from services.core.adapters.sqlite.database import Database
from services.core.adapters.sqlite.job_tables import (
    BY_ID,
    NAMES_CODE,
    TABLES,
    TO_ERASE,
    Scan,
    counts,
    held,
    scans,
)
from services.core.adapters.sqlite.place import MOUNTS
from services.core.domain.codec import MALFORMED, dump, load
from services.core.domain.document import MAX_TIME_MS, read_job
from services.core.domain.errors import InvalidRequest, NotFound, Quarantined, StaleRevision, WeftError
from services.core.domain.held_document import HELD_PATHS
from services.core.domain.job import SCHEMA, Event, Job, check_replace
from services.core.domain.status import Status
from services.core.ports.job_store import (
    Changes,
    DispatcherDoc,
    HeldPage,
    JobQuery,
    Unreadable,
    held_page,
    job_or_unreadable,
    jobs_of_pages,
    with_stored_rev,
)

_PAGE: Final = 500
"""Documents read at once, so that a long list delays other readers only shortly."""
_FEW: Final = 50
"""Documents of a page that is kept in memory at most."""
_CHANGES: Final = 5_000
"""Changes read at once; the next call reads on."""
_ALL: Final = Scan(BY_ID, "TRUE", ())


class SqliteJobStore:
    """See ``services.core.ports.job_store.JobStore``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    async def open(cls, path: Path, *, mounts: Path = MOUNTS) -> Self:
        """Opens or creates the file. Raises the errors of ``Database.open``."""
        return cls(await Database.open(path, title="job store", tables=TABLES, mounts=mounts))

    async def insert(self, job: Job) -> Job:
        stored = replace(job, rev=1)
        row = (stored.id, stored.rev, stored.idem, _text(stored))

        def write(connection: apsw.Connection) -> Job:
            change = _next_change(connection)
            connection.execute("INSERT INTO jobs(id, rev, idem, doc, change) VALUES (?, ?, ?, ?, ?)", (*row, change))
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

        return await self._database.read_unless_unchanged((column, value), read)

    async def replace(self, prior: Job, new: Job) -> Job:
        check_replace(prior, new)
        stored = replace(new, rev=prior.rev + 1)
        row = (stored.rev, _text(stored), prior.id, prior.rev)

        def write(connection: apsw.Connection) -> Job:
            change = _next_change(connection)
            connection.execute("UPDATE jobs SET change = ?, rev = ?, doc = ? WHERE id = ? AND rev = ?", (change, *row))
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
        ranges = scans(query)

        async def read_page(after: str | None, most: int) -> list[Job | Unreadable]:
            return await self._read_page(ranges, after, newest_first=newest_first, limit=min(most, _PAGE))

        return await jobs_of_pages(read_page, after=query.after, limit=limit, left_out=left_out)

    async def _read_page(
        self, ranges: Sequence[Scan], after: str | None, *, newest_first: bool, limit: int
    ) -> list[Job | Unreadable]:
        selects = [scan.page(newest_first=newest_first, after=after) for scan in ranges]

        def read(connection: apsw.Connection) -> list[Job | Unreadable]:
            pages = [connection.execute(select, (*values, limit)).fetchall() for select, values in selects]
            rows = heapq.merge(*pages, key=operator.itemgetter(0), reverse=newest_first)
            return [_readable(str(job_id), str(doc), rev) for job_id, doc, rev in islice(rows, limit)]

        key = (*selects, limit, newest_first)
        return await self._database.read_unless_unchanged(key, read, is_small=lambda page: len(page) <= _FEW)

    async def count(self, query: JobQuery) -> Mapping[Status, int]:
        ranges = {status: counts(query, status) for status in Status}

        def read(connection: apsw.Connection) -> dict[Status, int]:
            numbers = {
                status: connection.execute(
                    f"SELECT count(*) FROM {scan.source} WHERE {scan.where} AND schema <= ?",  # noqa: S608 - our text
                    (*scan.values, SCHEMA),
                ).fetchall()[0][0]
                for status, scan in ranges.items()
            }
            return {status: int(str(number)) for status, number in numbers.items() if number}

        return await self._database.read(read)

    async def unreadable(self, *, after: str = "", limit: int = _PAGE) -> tuple[Sequence[Unreadable], str]:
        page = await self._read_page([_ALL], after, newest_first=False, limit=limit)
        return [bad for bad in page if isinstance(bad, Unreadable)], page[-1].id if len(page) == limit else ""

    async def changes(self, after: int | None) -> Changes:
        def read(connection: apsw.Connection) -> Changes:
            if after is None:
                return Changes(revisions={}, position=_last_change(connection))
            rows = connection.execute(
                "SELECT change, id, rev FROM jobs INDEXED BY jobs_changed WHERE change > ? ORDER BY change LIMIT ?",
                (after, _CHANGES),
            ).fetchall()
            revisions = {str(job_id): int(str(rev)) for _, job_id, rev in rows}
            return Changes(revisions=revisions, position=int(str(rows[-1][0])) if rows else after)

        key = ("changes", after)
        return await self._database.read_unless_unchanged(
            key, read, is_small=lambda changes: len(changes.revisions) <= _FEW
        )

    async def to_erase(self, *, deleted_until: int, after: Job | None = None, limit: int = 100) -> Sequence[Job]:
        first = await self._database.read_unless_unchanged("to erase", _first_to_erase)
        if first is None or first > deleted_until:
            return []  # mostly: every second somebody asks, and jobs are deleted now and then
        jobs: list[Job] = []
        place = (-1, "") if after is None else (after.deleted or 0, after.id)
        while len(jobs) < limit:
            rows = await self._rows(TO_ERASE, (deleted_until, *place, limit - len(jobs)))
            if not rows:
                break
            page = [_readable(str(job_id), str(doc), rev) for job_id, doc, rev, _ in rows]
            jobs.extend(job for job in page if isinstance(job, Job))
            place = (int(str(rows[-1][3])), str(rows[-1][0]))
        return jobs

    async def held(
        self, *, released_since: int | None, tenant: str | None, after: tuple[int, str] | None = None, limit: int = 500
    ) -> HeldPage:
        select, values = held(released_since=released_since, tenant=tenant, after=after, limit=limit)

        def read(connection: apsw.Connection) -> HeldPage:
            rows: list[tuple[Any, ...]] = connection.execute(select, values).fetchall()
            documents = [(place, str(job_id), _held_values(str(text))) for place, job_id, text in rows]
            return held_page(documents, after=after or (released_since or 0, ""), limit=limit)

        return await self._database.read(read)

    async def names_code(self, tenant: str, digest: str) -> bool:
        return bool(await self._rows(NAMES_CODE, (tenant, digest)))

    async def _rows(self, select: str, values: Sequence[str | int]) -> list[tuple[Any, ...]]:
        return await self._database.read(lambda connection: connection.execute(select, tuple(values)).fetchall())

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
        return await self._database.read_unless_unchanged("dispatcher", _dispatcher)

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
    except MALFORMED as error:
        raise Quarantined(f"the document of job {job_id} is not JSON: {error}") from error
    return read_job(job_id, document)


def _readable(job_id: str, text: str, rev: object) -> Job | Unreadable:
    try:
        document = json.loads(text)
    except MALFORMED as error:
        return Unreadable(id=job_id, why=f"the document of job {job_id} is not JSON: {error}")
    return job_or_unreadable(job_id, document, rev)


def _event(text: str) -> Event | None:
    try:
        return load(Event, json.loads(text))
    except MALFORMED:
        return None


def _held_values(text: str) -> Mapping[str, Any]:
    """The values at ``HELD_PATHS``; none where they are no JSON for Python, e.g. nested too deeply."""
    try:
        return dict(zip(HELD_PATHS, json.loads(text), strict=True))
    except MALFORMED:
        return {}


def _refusal(connection: apsw.Connection, prior: Job) -> WeftError:
    row = connection.execute("SELECT rev FROM jobs WHERE id = ?", (prior.id,)).fetchone()
    if row is None:
        return NotFound(f"there is no job {prior.id}")
    return StaleRevision(f"job {prior.id} is at revision {row[0]}, not {prior.rev}")


def _first_to_erase(connection: apsw.Connection) -> int | None:
    """When the first of the deleted jobs that are not erased was deleted, in Unix ms; None: there is none."""
    rows: Any = connection.execute(TO_ERASE, (MAX_TIME_MS, -1, "", 1)).fetchall()
    return int(rows[0][3]) if rows else None


def _dispatcher(connection: apsw.Connection) -> DispatcherDoc:
    row: Any = connection.execute("SELECT term, holder, rev FROM dispatcher WHERE one = 1").fetchone()
    return DispatcherDoc() if row is None else DispatcherDoc(term=row[0], holder=row[1], rev=row[2])


def _next_change(connection: apsw.Connection) -> int:
    """The number of the write that is made now. Writers are serialized, so it is in the order of their commits."""
    connection.execute("UPDATE changes SET last = last + 1 WHERE one = 1")
    return _last_change(connection)


def _last_change(connection: apsw.Connection) -> int:
    row: Any = connection.execute("SELECT last FROM changes WHERE one = 1").fetchone()
    return int(row[0])
