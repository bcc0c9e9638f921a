"""JobStore on MongoDB: one document per job, with the job's own document inside.

    jobs        {_id: id, rev, idem, write, job: {tenant, state: {status, ...}, ...}}
    history     {job, seq, tenant, event: {...}}            unique by (job, seq)
    dispatcher  {_id: "dispatcher", rev, write, term, holder}

The outer fields must be valid even if the job is malformed: its id, revision and idempotency key. Queries use the
fields of the job itself, so they cannot disagree with it. Nothing here needs transactions, change streams or partial
indexes: every server of the protocol can do it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self

from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.errors import BulkWriteError

from services.core.adapters.mongo.connection import Database, Document, check_size, close, connect, translated
from services.core.adapters.mongo.documents import Documents
from services.core.domain.codec import dump, load
from services.core.domain.document import read_job
from services.core.domain.errors import (
    Duplicate,
    Internal,
    InvalidRequest,
    Quarantined,
    StaleRevision,
    Unavailable,
    WeftError,
)
from services.core.domain.job import SCHEMA, Event, Job, check_replace
from services.core.domain.status import Status
from services.core.ports.job_store import DispatcherDoc, JobQuery, Unreadable, job_or_unreadable, with_stored_rev
from services.core.ports.record_store import too_deep

_DEPTH_MAX: Final = 90
"""Levels of a job's document: MongoDB holds 100."""
_PAGE: Final = 500
"""Documents read at once: bounds the memory of a long list."""
_INDEXES: Final = (
    IndexModel([("idem", 1)], name="idem", unique=True),
    IndexModel([("job.tenant", 1), ("job.deleted", 1), ("job.state.status", 1), ("_id", 1)], name="tenant"),
    IndexModel([("job.state.status", 1), ("_id", 1)], name="status"),
    IndexModel([("job.released", 1), ("job.attempt.number", 1), ("_id", 1)], name="holding"),
    # No entry for an empty tail: as small as a partial index.
    IndexModel([("job.history_tail.seq", 1)], name="untrimmed"),
)
_HISTORY_INDEX: Final = IndexModel([("job", 1), ("seq", 1)], name="job_seq", unique=True)
_HOLDING: Final[Mapping[str, Any]] = {"job.attempt.number": {"$gt": 0}, "job.released": None}
_DISPATCHER: Final = {"_id": "dispatcher"}
_DUPLICATE_KEY: Final = 11000


class MongoJobStore:
    """See ``services.core.ports.job_store.JobStore``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._jobs = Documents(database["jobs"])
        self._history = database["history"]
        self._dispatcher = Documents(database["dispatcher"])

    @classmethod
    async def open(cls, uri: str) -> Self:
        """Connects and creates missing indexes. The caller runs ``check_store``. Raises the errors of ``connect``."""
        return await cls.on(connect(uri))

    @classmethod
    async def on(cls, database: Database) -> Self:
        """As ``open``, on a connection, which it closes on failure."""
        store = cls(database)
        try:
            with translated():
                await database["jobs"].create_indexes([*_INDEXES])
                await database["history"].create_indexes([_HISTORY_INDEX])
        except WeftError:
            await store.close()
            raise
        return store

    async def insert(self, job: Job) -> Job:
        stored = replace(job, rev=1)
        await self._jobs.insert({"_id": stored.id}, _envelope(stored))
        return stored

    async def get(self, job_id: str) -> Job | None:
        return await self._find_one({"_id": job_id})

    async def by_idem(self, idem: str) -> Job | None:
        return await self._find_one({"idem": idem})

    async def _find_one(self, key: Mapping[str, str]) -> Job | None:
        stored = await self._jobs.get(key)
        if stored is None:
            return None
        return with_stored_rev(read_job(str(stored["_id"]), stored.get("job")), stored.get("rev"))

    async def replace(self, prior: Job, new: Job) -> Job:
        check_replace(prior, new)
        stored = replace(new, rev=prior.rev + 1)
        await self._jobs.replace({"_id": prior.id}, prior.rev, _envelope(stored))
        return stored

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
            where = _where(query)
            if after is not None:
                where.append({"_id": {"$lt" if newest_first else "$gt": after}})
            page = await self._page(where, DESCENDING if newest_first else ASCENDING, min(limit - len(jobs), _PAGE))
            jobs.extend(job for job in page if isinstance(job, Job))
            if left_out is not None:
                left_out.extend(bad for bad in page if isinstance(bad, Unreadable))
            if not page:
                break
            after = page[-1].id
        return jobs

    async def _page(self, where: Sequence[Mapping[str, Any]], order: int, limit: int) -> list[Job | Unreadable]:
        with translated():
            cursor = self._jobs.collection.find({"$and": where} if where else {}).sort("_id", order).limit(limit)
            documents = await cursor.to_list()
        return [
            job_or_unreadable(str(document["_id"]), document.get("job"), document.get("rev")) for document in documents
        ]

    async def count(self, query: JobQuery) -> Mapping[Status, int]:
        known = [status.value for status in Status]
        where = [*_where(query), {"job.state.status": {"$in": known}}, {"job.schema": {"$not": {"$gt": SCHEMA}}}]
        group = {"_id": "$job.state.status", "count": {"$sum": 1}}
        with translated():
            cursor = await self._jobs.collection.aggregate([{"$match": {"$and": where}}, {"$group": group}])
            groups = await cursor.to_list()
        # A malformed document with a list of statuses matches too.
        return {Status(group["_id"]): int(group["count"]) for group in groups if group["_id"] in known}

    async def unreadable(self, *, after: str = "", limit: int = _PAGE) -> tuple[Sequence[Unreadable], str]:
        page = await self._page([{"_id": {"$gt": after}}], ASCENDING, limit)
        return [bad for bad in page if isinstance(bad, Unreadable)], page[-1].id if len(page) == limit else ""

    async def delete(self, job_id: str) -> None:
        # In this order: a crash in between leaves a job that can be deleted again, not a history without its job.
        with translated():
            await self._history.delete_many({"job": job_id})
            await self._jobs.collection.delete_one({"_id": job_id})

    async def append_history(self, job_id: str, tenant: str, events: Sequence[Event]) -> None:
        documents = [{"job": job_id, "seq": event.seq, "tenant": tenant, "event": dump(event)} for event in events]
        if not documents:
            return
        with translated():
            for document in documents:
                check_size(document)  # of many documents at once the driver leaves this to the server
            try:
                await self._history.insert_many(documents, ordered=False)
            except BulkWriteError as error:
                _ignore_duplicates(error)

    async def history(self, job_id: str, *, after_seq: int = 0, limit: int = 1000) -> Sequence[Event]:
        with translated():
            cursor = self._history.find({"job": job_id, "seq": {"$gt": after_seq}}).sort("seq", ASCENDING).limit(limit)
            documents = await cursor.to_list()
        events = [_event(document.get("event")) for document in documents]
        return [event for event in events if event is not None]

    async def dispatcher(self) -> DispatcherDoc:
        stored = await self._dispatcher.get(_DISPATCHER)
        if stored is None:
            return DispatcherDoc()
        try:
            return load(DispatcherDoc, {name: stored[name] for name in ("term", "holder", "rev")})
        except (KeyError, TypeError, ValueError) as error:
            raise Quarantined(f"the dispatcher's document cannot be read: {error!r}") from error

    async def replace_dispatcher(self, prior: DispatcherDoc, new: DispatcherDoc) -> DispatcherDoc:
        stored = replace(new, rev=prior.rev + 1)
        document = {**_DISPATCHER, "term": stored.term, "holder": stored.holder, "rev": stored.rev}
        if prior.rev:
            await self._dispatcher.replace(_DISPATCHER, prior.rev, document)
            return stored
        try:
            await self._dispatcher.insert(_DISPATCHER, document)
        except Duplicate as error:
            raise StaleRevision("the dispatcher's document exists already") from error
        return stored

    async def ping(self) -> None:
        with translated():
            await self._database.command("ping")

    async def close(self) -> None:
        await close(self._database)


def _envelope(job: Job) -> Document:
    try:
        document = dump(job)
    except RecursionError:
        document = None
    if document is None or too_deep(document, _DEPTH_MAX):
        raise InvalidRequest(f"the document of a job has at most {_DEPTH_MAX} levels")
    return {"_id": job.id, "rev": job.rev, "idem": job.idem, "job": document}


def _event(document: object) -> Event | None:
    try:
        return load(Event, document)
    except (TypeError, ValueError):
        return None


def _ignore_duplicates(error: BulkWriteError) -> None:
    """Ignores events that exist already; raises any other error."""
    details: Mapping[str, Any] = error.details
    other = [failed for failed in details.get("writeErrors", ()) if failed.get("code") != _DUPLICATE_KEY]
    if other:
        raise Internal(f"MongoDB did not store all events: {other}") from error
    if unsure := details.get("writeConcernErrors"):
        raise Unavailable(f"MongoDB's majority does not answer: {unsure}", retry_after_s=1.0) from error


def _where(query: JobQuery) -> list[Mapping[str, Any]]:
    """The terms of a query's filter, without its cursor."""
    terms: list[Mapping[str, Any]] = [
        {field: value}
        for field, value in (
            ("job.tenant", query.tenant), ("job.user", query.user), ("job.spec.name", query.name),
            ("job.spec.tags", query.tag),
        )
        if value is not None
    ]  # fmt: skip
    if query.holder is not None:
        terms.append({"job.guardian.holder": query.holder or {"$in": ["", None]}})
    if query.statuses:
        terms.append({"job.state.status": {"$in": [status.value for status in query.statuses]}})
    if query.holding is not None:
        terms.append(_HOLDING if query.holding else {"$nor": [_HOLDING]})
    if query.untrimmed:
        terms.append({"job.history_tail.seq": {"$gt": 0}})
    if not query.deleted:
        terms.append({"job.deleted": None})
    return terms
