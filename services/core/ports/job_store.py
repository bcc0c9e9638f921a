"""The job store: job documents, their history and the dispatcher's document. Linearizable per document.

A write returns when it is durable (fsync; majority and journal). The operations are those that every document database
has: insert, find by indexed equality and range with sort and limit, replace where ``_id`` and ``rev`` match, delete,
count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from services.core.domain.document import read_job
from services.core.domain.errors import Conflict, Quarantined
from services.core.domain.held_document import read_held_job
from services.core.domain.held_time import HeldJob
from services.core.domain.job import Event, Job
from services.core.domain.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """A filter of jobs: a job matches if every given field does."""

    tenant: str | None = None
    user: str | None = None
    statuses: tuple[Status, ...] = ()
    """Any of these; empty: all."""
    live: bool | None = None
    """True: only jobs that are not at rest (``Job.live``); False: only the others."""
    holding: bool | None = None
    """True: only jobs that may hold hardware (attempt > 0 and not released); False: only the others."""
    holder: str | None = None
    """Member id of the guardian process that holds the claim; "" for jobs without a claim."""
    name: str | None = None
    """Exact name in the spec."""
    tag: str | None = None
    """One of the tags in the spec."""
    untrimmed: bool = False
    """True: only jobs whose ``history_tail`` is not empty."""
    stopped: bool = False
    """True: only jobs that are HALTED by a stop of the platform (``Job.stopped``)."""
    deleted: bool = False
    """True: deleted jobs as well; False: without them."""
    after: str | None = None
    """The keyset cursor: only ids that come after this one in the order of the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherDoc:
    """The document that fences dispatchers (architecture.md, "Dispatcher")."""

    term: int = 0
    """Each new leader adds 1."""
    holder: str = ""
    """Member id of the leading process."""
    rev: int = 0
    """Revision, set by the store; 0: the document does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Which documents were written since a position in the store's sequence of writes."""

    revisions: Mapping[str, int]
    """Job id -> its revision. A write may be reported more than once."""
    position: int
    """Where the next call continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A stored document that is not a job that this version can read."""

    id: str
    why: str
    """The reason, for people."""
    newer: bool = False
    """It has a newer schema: it is no fault and is left alone."""
    document: Mapping[str, Any] = field(default_factory=dict)
    """The document; empty where it is not a mapping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPage:
    """A page of ``JobStore.held``."""

    jobs: Sequence[HeldJob]
    unreadable: int
    """How many further documents of the page cannot be read."""
    after: tuple[int, str]
    """(``released``, id) of its last document, 0 for jobs that hold hardware: the next page begins after it."""
    more: bool
    """False: there was no further document."""


def job_or_unreadable(job_id: str, document: object, rev: object) -> Job | Unreadable:
    """Returns the job of a stored document, or why it cannot be read. Never raises: a list must not fail for one job.

    ``rev``: see ``with_stored_rev``.
    """
    try:
        return with_stored_rev(read_job(job_id, document), rev)
    except Conflict as error:
        mapping: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
        return Unreadable(id=job_id, why=error.message, newer=not isinstance(error, Quarantined), document=mapping)


def held_page(
    documents: Sequence[tuple[int, str, Mapping[str, Any]]], *, after: tuple[int, str], limit: int
) -> HeldPage:
    """Returns the page of these documents: (place in the index, id, values at ``HELD_PATHS``). For ``JobStore.held``.

    The place is that of the index and not a value of the document, which may be damaged: no page begins twice.
    ``after``: where the page began. ``limit``: most documents of the page.
    """
    jobs = [read_held_job(job_id, values) for _, job_id, values in documents]
    readable = [job for job in jobs if job is not None]
    last = documents[-1][:2] if documents else after
    return HeldPage(jobs=readable, unreadable=len(jobs) - len(readable), after=last, more=len(documents) == limit)


def with_stored_rev(job: Job, rev: object) -> Job:
    """Returns the job at the revision that the store keeps beside the document.

    The revision inside may differ after an operator repaired the document by hand. A ``rev`` that is no integer is
    ignored.
    """
    return replace(job, rev=rev) if isinstance(rev, int) and rev != job.rev else job


async def jobs_of_pages(
    read_page: Callable[[str | None, int], Awaitable[Sequence[Job | Unreadable]]],
    *,
    after: str | None,
    limit: int,
    left_out: list[Unreadable] | None,
) -> list[Job]:
    """Reads pages until there are ``limit`` jobs or no more documents. For ``JobStore.find``.

    ``read_page``: (id after which it begins, most documents) -> the page; an empty one is the end. Unreadable documents
    go to ``left_out`` and do not count: a short answer would look like the end of the list.
    """
    jobs: list[Job] = []
    while len(jobs) < limit:
        page = await read_page(after, limit - len(jobs))
        if not page:
            break
        jobs.extend(job for job in page if isinstance(job, Job))
        if left_out is not None:
            left_out.extend(bad for bad in page if isinstance(bad, Unreadable))
        after = page[-1].id
    return jobs


class JobStore(Protocol):
    """Job documents by id, in order of submission."""

    async def insert(self, job: Job) -> Job:
        """Writes a new document and returns it with ``rev`` 1. Raises Duplicate where the id or ``idem`` is taken."""
        ...

    async def get(self, job_id: str) -> Job | None:
        """Returns the job, or None where no acknowledged insert of it exists. A linearizable read.

        Raises Quarantined for a malformed document and Conflict for a newer schema.
        """
        ...

    async def by_idem(self, idem: str) -> Job | None:
        """Returns the job whose ``idem`` is this key, or None. Raises as ``get`` does."""
        ...

    async def replace(self, prior: Job, new: Job) -> Job:
        """Replaces the document where its ``rev`` is ``prior.rev``, and returns ``new`` with ``prior.rev + 1``.

        Raises StaleRevision where the document changed since ``prior`` was read, IllegalTransition where
        ``check_replace(prior, new)`` does, and NotFound where there is no such job.
        """
        ...

    async def find(
        self,
        query: JobQuery,
        *,
        newest_first: bool = True,
        limit: int = 100,
        left_out: list[Unreadable] | None = None,
    ) -> Sequence[Job]:
        """Returns up to ``limit`` jobs that match, in the order of their ids, which is that of submission.

        Fewer than ``limit`` jobs means that there are no more. Unreadable documents are skipped and added to
        ``left_out``; one whose queried fields cannot be read either may be missing there.
        """
        ...

    async def count(self, query: JobQuery) -> Mapping[Status, int]:
        """Returns status -> number of matching jobs; a status without jobs may be absent. ``query.after`` is ignored.

        Documents of a newer schema and those without a readable status are not counted.
        """
        ...

    async def unreadable(self, *, after: str = "", limit: int = 500) -> tuple[Sequence[Unreadable], str]:
        """Examines ``limit`` documents with ids after ``after`` and returns the unreadable ones, for operators.

        The second value is the id to continue after; empty: there are no more documents.
        """
        ...

    async def changes(self, after: int | None) -> Changes:
        """Returns the jobs that were written after a position, from an index: the cost depends on these writes only.

        ``after``: ``position`` of the last call; None: returns no revisions, and the position of now. Every write is
        reported by some call, except: a store without transactions may miss a write if the clocks of two writers differ
        by more than two seconds, and ``delete`` is not reported. So a reader also reads its jobs now and then.
        """
        ...

    async def to_erase(self, *, deleted_until: int, after: Job | None = None, limit: int = 100) -> Sequence[Job]:
        """Returns deleted jobs that are not erased, in the order of (deleted, id); fewer than ``limit``: no more.

        ``deleted_until``: only those deleted at this time (Unix ms) or before. ``after``: only those that come after
        this job. Unreadable documents are skipped.
        """
        ...

    async def held(
        self, *, released_since: int | None, tenant: str | None, after: tuple[int, str] | None = None, limit: int = 500
    ) -> HeldPage:
        """Returns a page of jobs that hold or held hardware, deleted ones as well, from an index.

        ``released_since``: jobs that do not hold hardware now and have given it back last at this time (Unix ms) or
        later, in the order of (``released``, id); None: jobs that hold hardware now, in the order of their ids.
        ``tenant``: None: of all tenants. ``after``: that of the page before. ``limit``: most documents of the page.
        """
        ...

    async def names_code(self, tenant: str, digest: str) -> bool:
        """Whether a job of the tenant that is not erased has this code digest. A linearizable read.

        Also True while the store has a document that does not show its tenant: it may name any code.
        """
        ...

    async def delete(self, job_id: str) -> None:
        """Removes the document and its history for good. No error where there is none."""
        ...

    async def append_history(self, job_id: str, tenant: str, events: Sequence[Event]) -> None:
        """Copies events to the history collection. An event whose ``seq`` is there already stays unchanged."""
        ...

    async def history(self, job_id: str, *, after_seq: int = 0, limit: int = 1000) -> Sequence[Event]:
        """Returns the first ``limit`` copied events with a ``seq`` above ``after_seq``, in order of ``seq``.

        The latest events may be in the document's ``history_tail`` only: see ``services.core.use_cases.jobs.history``.
        """
        ...

    async def dispatcher(self) -> DispatcherDoc:
        """Returns the dispatcher's document; term 0 and rev 0 where there is none yet. A linearizable read."""
        ...

    async def replace_dispatcher(self, prior: DispatcherDoc, new: DispatcherDoc) -> DispatcherDoc:
        """Replaces the dispatcher's document where its ``rev`` is ``prior.rev``, and returns the stored one.

        Raises StaleRevision where it changed since ``prior`` was read.
        """
        ...

    async def ping(self) -> None:
        """Raises Unavailable where the store does not answer."""
        ...

    async def close(self) -> None:
        """Closes connections and files."""
        ...
