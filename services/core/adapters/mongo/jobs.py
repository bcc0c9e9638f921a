"""JobStore on MongoDB: one document per job, with the job's own document inside.

    jobs        {_id: id, rev, idem, write, live, holds, tail, changed, job: {tenant, state: {status, ...}, ...}}
    history     {job, seq, tenant, event: {...}}            unique by (job, seq)
    dispatcher  {_id: "dispatcher", rev, write, term, holder}

The outer fields must be valid even if the job is malformed: its id, revision and idempotency key. ``live``, ``holds``
and ``tail`` are computed from the job at each write, so that the queries of each second have an index that is in the
order of ids. Documents of older versions lack them: a missing one counts as true, the query checks the job's own fields
as well, and ``open`` marks those that are at rest and have no tail. ``changed`` is the time of the write in Unix ms.
Other queries use the fields of the job itself. Nothing here needs transactions, change streams or partial indexes:
every server of the protocol can do it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self

from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.errors import BulkWriteError, WriteConcernError, WriteError

from services.core.adapters.mongo.connection import (
    TIMEOUT_S,
    Database,
    Document,
    check_size,
    close,
    connect,
    translated,
)
from services.core.adapters.mongo.documents import Documents, create_indexes, until_answered
from services.core.domain.codec import MALFORMED, dump, load
from services.core.domain.document import MAX_TIME_MS, read_job
from services.core.domain.errors import (
    Duplicate,
    InvalidRequest,
    Quarantined,
    StaleRevision,
    WeftError,
)
from services.core.domain.held_document import HELD_PATHS, value_at
from services.core.domain.job import PLATFORM, SCHEMA, Event, Job, check_replace
from services.core.domain.status import RESTING, Desired, Status
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
from services.core.ports.record_store import too_deep

_DEPTH_MAX: Final = 90
"""Levels of a job's document: MongoDB holds 100."""
_PAGE: Final = 500
"""Documents read at once: bounds the memory of a long list."""
_INDEXES: Final = (
    IndexModel([("idem", 1)], name="idem", unique=True),
    IndexModel([("job.tenant", 1), ("job.deleted", 1), ("job.state.status", 1), ("_id", 1)], name="tenant"),
    IndexModel([("job.state.status", 1), ("_id", 1)], name="status"),
    IndexModel([("job.tenant", 1), ("job.deleted", 1), ("_id", 1)], name="of_tenant"),
    IndexModel([("job.tenant", 1), ("job.deleted", 1), ("job.user", 1), ("_id", 1)], name="user"),
    IndexModel([("job.tenant", 1), ("job.deleted", 1), ("job.spec.name", 1), ("_id", 1)], name="name"),
    IndexModel([("job.tenant", 1), ("job.deleted", 1), ("job.spec.tags", 1), ("_id", 1)], name="tags"),
    IndexModel([("live", 1), ("holds", 1), ("_id", 1)], name="live"),
    IndexModel([("tail", 1), ("_id", 1)], name="tail"),
    IndexModel([("job.desired_by", 1), ("job.state.status", 1), ("_id", 1)], name="stopped"),
    IndexModel([("job.tenant", 1), ("job.code_digest", 1), ("job.erased", 1)], name="code"),
    IndexModel([("job.erased", 1), ("job.deleted", 1), ("_id", 1)], name="to_erase"),
    IndexModel([("changed", 1), ("_id", 1), ("rev", 1)], name="changed"),
    IndexModel([("job.released", 1), ("_id", 1), ("job.tenant", 1)], name="released"),
)
_HISTORY_INDEX: Final = IndexModel([("job", 1), ("seq", 1)], name="job_seq", unique=True)
_HOLDING: Final[Mapping[str, Any]] = {"job.attempt.number": {"$gt": 0}, "job.released": None}
_AT_REST: Final[Mapping[str, Any]] = {
    "job.state.status": {"$in": sorted(status.value for status in RESTING)},
    "$nor": [_HOLDING],
}
_STOPPED: Final[Mapping[str, Any]] = {
    "job.desired_by": PLATFORM,
    "job.state.status": Status.HALTED.value,
    "job.desired": Desired.HALT.value,
}
_OR_MISSING: Final = {"$in": [True, None]}
_OVERLAP_MS: Final = round(1000 * (TIMEOUT_S + 2))
"""A write may become visible so long after one with a later ``changed``: it takes its time once before it is sent, and
is repeated for up to TIMEOUT_S. The rest is for clocks that differ."""
_CHANGE: Final = {"_id": 1, "rev": 1, "changed": 1}
_CHANGE_ORDER: Final = [("changed", ASCENDING), ("_id", ASCENDING)]
_CHANGES: Final = 5_000
"""Changes read at once; ``changes`` reads page after page until there is no more."""
_HELD: Final = {f"job.{path}": 1 for path in HELD_PATHS}
_RELEASE_ORDER: Final = [("job.released", ASCENDING), ("_id", ASCENDING)]
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
            await create_indexes(database["jobs"], _INDEXES)
            await create_indexes(database["history"], [_HISTORY_INDEX])
            await store._mark_old()
        except WeftError:
            await store.close()
            raise
        return store

    async def _mark_old(self) -> None:
        """Marks the documents of older versions that are at rest, and whose events are copied, a page at a time.

        It may be killed and repeated, and run beside writers: they write ``live`` themselves, at any revision.
        """
        jobs, after = self._jobs.collection, ""
        old: Document = {"live": None, "job.history_tail": []}
        while True:
            unmarked = {"$and": [{**old, "_id": {"$gt": after}}, _AT_REST]}
            async with translated():
                page = await jobs.find(unmarked, {"_id": 1}).sort("_id", ASCENDING).limit(_PAGE).to_list()
                if not page:
                    return
                ids = [document["_id"] for document in page]
                marks = {"live": False, "holds": False, "tail": False}
                await jobs.update_many({"$and": [{**old, "_id": {"$in": ids}}, _AT_REST]}, {"$set": marks})
            after = str(ids[-1])

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
        order, beyond = (DESCENDING, "$lt") if newest_first else (ASCENDING, "$gt")

        async def read_page(after: str | None, most: int) -> list[Job | Unreadable]:
            where = _where(query)
            if after is not None:
                where.append({"_id": {beyond: after}})
            return await self._page(where, order, min(most, _PAGE))

        return await jobs_of_pages(read_page, after=query.after, limit=limit, left_out=left_out)

    async def _page(self, where: Sequence[Mapping[str, Any]], order: int, limit: int) -> list[Job | Unreadable]:
        async with translated():
            cursor = self._jobs.collection.find({"$and": where} if where else {}).sort("_id", order).limit(limit)
            documents = await cursor.to_list()
        return [
            job_or_unreadable(str(document["_id"]), document.get("job"), document.get("rev")) for document in documents
        ]

    async def count(self, query: JobQuery) -> Mapping[Status, int]:
        known = [status.value for status in Status]
        where = [*_where(query), {"job.state.status": {"$in": known}}, {"job.schema": {"$not": {"$gt": SCHEMA}}}]
        group = {"_id": "$job.state.status", "count": {"$sum": 1}}
        async with translated():
            cursor = await self._jobs.collection.aggregate([{"$match": {"$and": where}}, {"$group": group}])
            groups = await cursor.to_list()
        # A malformed document with a list of statuses matches too.
        return {Status(group["_id"]): int(group["count"]) for group in groups if group["_id"] in known}

    async def unreadable(self, *, after: str = "", limit: int = _PAGE) -> tuple[Sequence[Unreadable], str]:
        page = await self._page([{"_id": {"$gt": after}}], ASCENDING, limit)
        return [bad for bad in page if isinstance(bad, Unreadable)], page[-1].id if len(page) == limit else ""

    async def changes(self, after: int | None) -> Changes:
        async with translated():
            if after is None:
                latest = self._jobs.collection.find({}, {"_id": 0, "changed": 1}).sort("changed", DESCENDING).limit(1)
                return Changes(revisions={}, position=max([0, *map(_time, await latest.to_list())]))
        revisions: dict[str, int] = {}
        position, where = after, _after_change(after - _OVERLAP_MS)
        while True:
            async with translated():
                cursor = self._jobs.collection.find(where, _CHANGE).sort(_CHANGE_ORDER).limit(_CHANGES)
                documents = await cursor.to_list()
            revisions.update({str(document["_id"]): int(document["rev"]) for document in documents})
            position = max([position, *map(_time, documents)])
            if len(documents) < _CHANGES:
                return Changes(revisions=revisions, position=position)
            where = _after_change(documents[-1]["changed"], documents[-1]["_id"])

    async def to_erase(self, *, deleted_until: int, after: Job | None = None, limit: int = 100) -> Sequence[Job]:
        jobs: list[Job] = []
        due: Document = {"job.erased": None, "job.deleted": {"$gte": 0, "$lte": deleted_until}}
        place = None if after is None else (after.deleted, after.id)
        order = [("job.deleted", ASCENDING), ("_id", ASCENDING)]
        while len(jobs) < limit:
            where = due
            if place is not None:
                later = {"job.erased": None, "job.deleted": {"$gt": place[0], "$lte": deleted_until}}
                where = {"$or": [{"job.erased": None, "job.deleted": place[0], "_id": {"$gt": place[1]}}, later]}
            async with translated():
                page = await self._jobs.collection.find(where).sort(order).limit(limit - len(jobs)).to_list()
            if not page:
                break
            entries = [job_or_unreadable(str(entry["_id"]), entry.get("job"), entry.get("rev")) for entry in page]
            jobs.extend(job for job in entries if isinstance(job, Job))
            place = (page[-1]["job"]["deleted"], str(page[-1]["_id"]))
        return jobs

    async def held(
        self, *, released_since: int | None, tenant: str | None, after: tuple[int, str] | None = None, limit: int = 500
    ) -> HeldPage:
        visible: Document = {} if tenant is None else {"job.tenant": tenant}
        order = _RELEASE_ORDER
        if released_since is None:
            order = [("_id", ASCENDING)]
            last = "" if after is None else after[1]
            where: Document = {
                "$and": [*_where(JobQuery(holding=True, tenant=tenant, deleted=True)), {"_id": {"$gt": last}}]
            }
        elif after is None:
            where = {**visible, "job.released": {"$gte": released_since, "$lte": MAX_TIME_MS}}
        else:
            later = {**visible, "job.released": {"$gt": after[0], "$lte": MAX_TIME_MS}}
            where = {"$or": [{**visible, "job.released": after[0], "_id": {"$gt": after[1]}}, later]}
        async with translated():
            page = await self._jobs.collection.find(where, _HELD).sort(order).limit(limit).to_list()
        documents: list[tuple[int, str, Mapping[str, Any]]] = []
        for entry in page:
            values = {path: value_at(entry.get("job"), path) for path in HELD_PATHS}
            documents.append((0 if released_since is None else values["released"], str(entry["_id"]), values))
        return held_page(documents, after=after or (released_since or 0, ""), limit=limit)

    async def names_code(self, tenant: str, digest: str) -> bool:
        for where in ({"job.tenant": tenant, "job.code_digest": digest, "job.erased": None}, {"job.tenant": None}):
            if await self._jobs.get(where) is not None:
                return True
        return False

    async def delete(self, job_id: str) -> None:
        # In this order: a crash in between leaves a job that can be deleted again, not a history without its job.
        async def delete_history() -> None:
            await self._history.delete_many({"job": job_id})

        await until_answered(delete_history)
        await self._jobs.delete({"_id": job_id})

    async def append_history(self, job_id: str, tenant: str, events: Sequence[Event]) -> None:
        documents = [{"job": job_id, "seq": event.seq, "tenant": tenant, "event": dump(event)} for event in events]
        if not documents:
            return
        async with translated():
            for document in documents:
                check_size(document)  # of many documents at once the driver leaves this to the server

        async def write() -> None:
            try:
                # Copies: the driver adds an _id to each.
                await self._history.insert_many([{**document} for document in documents], ordered=False)
            except BulkWriteError as error:
                _ignore_duplicates(error)

        await until_answered(write)

    async def history(self, job_id: str, *, after_seq: int = 0, limit: int = 1000) -> Sequence[Event]:
        async with translated():
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
        except MALFORMED as error:
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
        async with translated():
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
    return {
        "_id": job.id,
        "rev": job.rev,
        "idem": job.idem,
        "live": job.live,
        "holds": job.holds,
        "tail": bool(job.history_tail),
        "changed": time.time_ns() // 1_000_000,
        "job": document,
    }


def _after_change(changed: int, job_id: str | None = None) -> Document:
    """Filters documents that were written after a time; with ``job_id`` also those of that time beyond this id."""
    later: Document = {"changed": {"$gt": changed}}
    return later if job_id is None else {"$or": [{"changed": changed, "_id": {"$gt": job_id}}, later]}


def _time(document: Mapping[str, Any]) -> int:
    """When the document was written, in Unix ms; 0 for one of an older version."""
    changed = document.get("changed")
    return changed if isinstance(changed, int) else 0


def _event(document: object) -> Event | None:
    try:
        return load(Event, document)
    except MALFORMED:
        return None


def _ignore_duplicates(error: BulkWriteError) -> None:
    """Ignores events that exist already; raises another error as that of a single write."""
    details: Mapping[str, Any] = error.details
    for failed in details.get("writeErrors", ()):
        if failed.get("code") != _DUPLICATE_KEY:
            raise WriteError(str(failed.get("errmsg")), failed.get("code")) from error
    for undecided in details.get("writeConcernErrors", ()):
        raise WriteConcernError(str(undecided.get("errmsg")), undecided.get("code")) from error


def _where(query: JobQuery) -> list[Mapping[str, Any]]:
    """The terms of a query's filter, without its cursor."""
    terms: list[Mapping[str, Any]] = [
        {field: value}
        for field, value in (
            ("job.tenant", query.tenant),
            ("job.user", query.user),
            ("job.spec.name", query.name),
            ("job.spec.tags", query.tag),
        )
        if value is not None
    ]
    if query.holder is not None:
        terms.append({"job.guardian.holder": query.holder or {"$in": ["", None]}})
    if query.statuses:
        terms.append({"job.state.status": {"$in": [status.value for status in query.statuses]}})
    if query.live is not None:
        terms += [{"live": _OR_MISSING}, {"$nor": [_AT_REST]}] if query.live else [_AT_REST]
    if query.holding is not None:
        terms += [{"live": _OR_MISSING, "holds": _OR_MISSING}, _HOLDING] if query.holding else [{"$nor": [_HOLDING]}]
    if query.untrimmed:
        terms += [{"tail": _OR_MISSING}, {"job.history_tail.seq": {"$gt": 0}}]
    if query.stopped:
        terms.append(_STOPPED)
    if not query.deleted:
        terms.append({"job.deleted": None})
    return terms
