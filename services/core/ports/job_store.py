"""Where job documents, their history and the dispatcher's document live: durable, linearizable per document.

Every write is acknowledged only once it is durable (fsync; majority + journal). The dialect is portable on purpose:
insert, find by indexed equality and range with sort and limit, replace where ``_id`` and ``rev`` match, delete, count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from services.core.domain.document import read_job
from services.core.domain.errors import Conflict, Quarantined
from services.core.domain.job import Event, Job
from services.core.domain.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """A filter; every given field must match. Deleted jobs are left out unless asked for."""

    tenant: str | None = None
    user: str | None = None
    statuses: tuple[Status, ...] = ()
    holding: bool | None = None
    """True: only jobs that may hold hardware (attempt > 0 and not released); False: only the others."""
    holder: str | None = None
    """The guardian member that holds the claim; "" for those nobody holds."""
    name: str | None = None
    """Exact name from the spec."""
    tag: str | None = None
    untrimmed: bool = False
    """Only jobs whose history_tail is not empty."""
    deleted: bool = False
    """True: the deleted ones as well."""
    after: str | None = None
    """Only ids beyond this one in the order of the result: the keyset cursor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherDoc:
    """Who dispatches (architecture.md, Dispatcher). ``rev`` is the store's."""

    term: int = 0
    holder: str = ""
    rev: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A document that this version cannot make a job of."""

    id: str
    why: str
    newer: bool = False
    """Of a newer schema: it is left alone, and no fault."""
    document: Mapping[str, Any] = field(default_factory=dict)
    """What there is, where it is a mapping at all."""


def job_or_unreadable(job_id: str, document: object, rev: object) -> Job | Unreadable:
    """The job, or why it cannot be read: for lists, which one bad document must not spoil. ``rev`` is the store's."""
    try:
        return with_stored_rev(read_job(job_id, document), rev)
    except Conflict as error:
        seen: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
        return Unreadable(id=job_id, why=error.message, newer=not isinstance(error, Quarantined), document=seen)


def with_stored_rev(job: Job, rev: object) -> Job:
    """At the revision that the store keeps beside the document: one that was mended by hand may name an old one."""
    return replace(job, rev=rev) if isinstance(rev, int) and rev != job.rev else job


class JobStore(Protocol):
    async def insert(self, job: Job) -> Job:
        """Writes a new document with ``rev`` 1. Duplicate where the id or ``idem`` is taken."""
        ...

    async def get(self, job_id: str) -> Job | None:
        """A linearizable read: None means that no acknowledged insert of it exists.

        A document that cannot be read (malformed) raises Quarantined; of a newer schema it raises Conflict.
        """
        ...

    async def by_idem(self, idem: str) -> Job | None:
        """The job submitted under this idempotency key."""
        ...

    async def replace(self, prior: Job, new: Job) -> Job:
        """Replaces the document whose ``rev`` is ``prior.rev``; the stored ``rev`` is ``prior.rev + 1``.

        Returns what was stored. StaleRevision where another write was first; IllegalTransition where
        ``check_replace(prior, new)`` says so; NotFound where there is none.
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
        """Jobs in the order of their ids, which is that of submission.

        Unreadable documents are left out and fill no place: fewer than ``limit`` is the end. Those that were met on
        the way are added to ``left_out``; one in which not even the query's fields can be seen may not be met.
        """
        ...

    async def count(self, query: JobQuery) -> Mapping[Status, int]:
        """How many there are of each status (absent: none); the cursor is not looked at.

        Documents of a newer schema, and those whose status cannot be read, are left out.
        """
        ...

    async def unreadable(self, *, after: str = "", limit: int = 500) -> tuple[Sequence[Unreadable], str]:
        """A look at ``limit`` documents beyond the id ``after``: those that are malformed or of a newer schema.

        And where to go on; empty: that was the last. Touched by nobody, shown to the operator.
        """
        ...

    async def delete(self, job_id: str) -> None:
        """Removes document and history for good. No error where there is none."""
        ...

    async def append_history(self, job_id: str, tenant: str, events: Sequence[Event]) -> None:
        """Copies events to the history; those that are there already (same seq) are left as they are."""
        ...

    async def history(self, job_id: str, *, after_seq: int = 0, limit: int = 1000) -> Sequence[Event]:
        """Copied events in order of seq (readers merge them with the document's tail)."""
        ...

    async def dispatcher(self) -> DispatcherDoc:
        """The dispatcher's document; term 0 and rev 0 where there is none yet."""
        ...

    async def replace_dispatcher(self, prior: DispatcherDoc, new: DispatcherDoc) -> DispatcherDoc:
        """Compare-and-set on ``prior.rev``. StaleRevision where another was first."""
        ...

    async def ping(self) -> None:
        """Readiness: raises Unavailable."""
        ...

    async def close(self) -> None: ...
