"""How a job document is changed, by anyone: read, check the claim, apply a pure function, replace; on a lost race anew.

And how its history is read and copied: the document's tail and the history collection together are the history.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Final

from services.core.domain.errors import NotFound, StaleFence, StaleRevision
from services.core.domain.job import Claim, Event, Job, trimmed
from services.core.ports.job_store import JobQuery, JobStore, Unreadable

_TRIES: Final = 100
"""Each lost race means that somebody else's write went through; a hundred in a row is a livelock worth an error."""


async def update(store: JobStore, job_id: str, claim: Claim | None, change: Callable[[Job], Job]) -> Job:
    """The job after ``change``, durably; ``change`` may be called several times and must be pure.

    With a ``claim`` the write happens only while the document still holds exactly that term and nonce, else StaleFence.
    An unchanged document is not written. NotFound; whatever ``change`` raises.
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
    """All jobs of the query, in order of submission, a page at a time: no snapshot, each as it was when it was read.

    ``left_out``: see ``JobStore.find``.
    """
    while True:
        found = await store.find(query, newest_first=False, limit=page, left_out=left_out)
        for job in found:
            yield job
        if len(found) < page:
            return
        query = replace(query, after=found[-1].id)


async def copy_history(store: JobStore, job: Job) -> Job:
    """Copies the tail to the history collection, then trims what was copied.

    Any reconciler may do it, any number of times.
    """
    if not job.history_tail:
        return job
    await store.append_history(job.id, job.tenant, job.history_tail)
    copied = job.history_tail[-1].seq
    return await update(store, job.id, None, lambda current: trimmed(current, copied_seq=copied))


async def history(store: JobStore, job: Job, *, after_seq: int = 0) -> Sequence[Event]:
    """All events beyond ``after_seq`` in order, each once, wherever they lie."""
    merged = {event.seq: event for event in job.history_tail if event.seq > after_seq}
    while page := await store.history(job.id, after_seq=after_seq):
        merged |= {event.seq: event for event in page}
        after_seq = page[-1].seq
    return [merged[seq] for seq in sorted(merged)]
