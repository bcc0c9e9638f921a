"""Changes a job document under its claim, lists jobs page by page, and reads and copies their history.

All services change documents through ``update``: read, check the claim, apply a pure function, replace, and start again
where another write was first. A job's history is the history collection and the ``history_tail`` of its document.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Final

from services.core.domain.errors import NotFound, StaleFence, StaleRevision
from services.core.domain.job import Claim, Event, Job, trimmed
from services.core.ports.job_store import JobQuery, JobStore, Unreadable

_TRIES: Final = 100
"""Each lost race means that another write succeeded. A hundred in a row are a livelock, which is reported."""


async def update(store: JobStore, job_id: str, claim: Claim | None, change: Callable[[Job], Job]) -> Job:
    """Replaces the job by ``change(job)``, durably, and returns what was stored.

    ``change`` may be called several times, so it must be pure. A document that it leaves equal is not written.
    ``claim``: the write happens only while the document has its term and nonce; None: under any claim.

    Raises NotFound, StaleFence where the claim is superseded, StaleRevision after 100 lost races, and what ``change``
    raises.
    """
    for _ in range(_TRIES):
        prior = await store.get(job_id)
        if prior is None:
            raise NotFound(f"there is no job {job_id}")
        if claim is not None and (prior.guardian.term, prior.guardian.nonce) != (claim.term, claim.nonce):
            raise StaleFence(f"job {job_id} has another Guardian (term {prior.guardian.term}, ours is {claim.term})")
        new = change(prior)
        if new == prior:
            return prior
        try:
            return await store.replace(prior, new)
        except StaleRevision:
            continue
    raise StaleRevision(f"job {job_id} kept changing under {_TRIES} tries to update it")


async def all_jobs(
    store: JobStore, query: JobQuery, *, page: int = 1000, left_out: list[Unreadable] | None = None
) -> AsyncGenerator[Job]:
    """Yields all jobs that match, in order of submission, reading ``page`` jobs at a time.

    It is no snapshot: each job is as it was when its page was read. ``left_out``: see ``JobStore.find``.
    """
    while True:
        jobs = await store.find(query, newest_first=False, limit=page, left_out=left_out)
        for job in jobs:
            yield job
        if len(jobs) < page:
            return
        query = replace(query, after=jobs[-1].id)


async def copy_history(store: JobStore, job: Job) -> Job:
    """Copies the job's ``history_tail`` to the history collection, then trims the copied events. Returns the job.

    Any service may call it, at any time and repeatedly: an event is copied once.
    """
    if not job.history_tail:
        return job
    await store.append_history(job.id, job.tenant, job.history_tail)
    copied = job.history_tail[-1].seq
    return await update(store, job.id, None, lambda current: trimmed(current, copied_seq=copied))


async def history(store: JobStore, job: Job, *, after_seq: int = 0) -> Sequence[Event]:
    """Returns all events with a seq above ``after_seq``, in order, from the history collection and the document."""
    merged = {event.seq: event for event in job.history_tail if event.seq > after_seq}
    while page := await store.history(job.id, after_seq=after_seq):
        merged |= {event.seq: event for event in page}
        after_seq = page[-1].seq
    return [merged[seq] for seq in sorted(merged)]
