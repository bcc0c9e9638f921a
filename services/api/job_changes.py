"""The latest changes of all jobs, for the pages that show lists: read and written as JSON once for all of them.

The feed (``job_watcher``) appends each changed document; readers keep their own place. A reader that is slower than the
feed by more than the log holds gets an event `reset`, and reads its list again. Changes that no page shows, such as
claims and trims, are left out. Documents are kept as bytes, for lists with a filter alone: tenants choose how large
they are, so the log is bounded by bytes.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from services.api.packed_jobs import pack, unpack
from services.core.domain.job import Job

_KEPT: Final = 5_000
"""Changes in the log; each is about three kilobytes."""
_KEPT_BYTES: Final = 32 * 2**20
"""Of the changes in the log: twice what ``_KEPT`` ordinary ones take. With the largest specs that is some 100 changes,
more than readers are behind, who are woken at each; one that is reads its list again.
"""
_KNOWN: Final = 20_000
"""Jobs whose last revision and content are known."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A job as lists show it."""

    data: str
    """JSON."""
    digest: int
    """The same for two documents that look alike."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that users see."""

    number: int
    """Counts the changes of this log from 1."""
    position: int
    """Of the feed (``JobStore.changes``)."""
    job_id: str
    tenant: str
    deleted: bool
    data: str
    """As ``Rendered.data``."""
    packed: bytes | None
    """The document."""

    @property
    def job(self) -> Job | None:
        """The document, made anew from its bytes; None if it cannot be expressed so."""
        return unpack(self.packed) if self.packed is not None else None

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sys.getsizeof(self) + sys.getsizeof(self.data) + sys.getsizeof(self.packed)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a reader gets at a time."""

    changes: list[Change]
    """The newest of each job, in the order in which they were made."""
    place: int
    """Number after which the reader continues."""
    position: int
    """Everything up to here is in this batch or in an earlier one."""
    missed: bool
    """The log no longer had some changes."""


class JobChanges:
    """``position``: where the log begins."""

    def __init__(self, position: int, render: Callable[[Job], Rendered]) -> None:
        self._render = render
        self._log: deque[Change] = deque()
        self._known: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """Job id -> (revision, digest)."""
        self._bytes = 0
        """Of the log."""
        self._dropped = position - 1
        """Position of the last change that the log no longer has."""
        self.position = position
        """Everything up to here is in the log."""
        self.number = 0
        """Of the last change."""
        self._added = False
        self.changed = asyncio.Event()
        """Set, and replaced by a new one, when changes were added. Read it before ``after``."""

    def is_new(self, job_id: str, rev: int) -> bool:
        """False if this revision of the job, or a later one, was added."""
        return self._known.get(job_id, (0, 0))[0] < rev

    def add(self, job: Job, position: int) -> None:
        """Adds the job's document, unless it looks as it did before."""
        rendered = self._render(job)
        _, digest = self._known.pop(job.id, (0, 0))
        self._known[job.id] = (job.rev, rendered.digest)
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        if rendered.digest == digest:
            return
        self.number += 1
        self._added = True
        change = Change(self.number, position, job.id, job.tenant, job.deleted is not None, rendered.data, pack(job))
        self._log.append(change)
        self._bytes += change.size
        while len(self._log) > _KEPT or self._bytes > _KEPT_BYTES:
            dropped = self._log.popleft()
            self._dropped, self._bytes = dropped.position, self._bytes - dropped.size

    def complete(self, position: int) -> None:
        """Everything up to ``position`` was added: wakes the readers if that was anything."""
        self.position = position
        if self._added:
            self._added = False
            self.changed.set()
            self.changed = asyncio.Event()

    def place_of(self, position: int) -> int | None:
        """Number of the last change before a position; None if the log does not have all changes since.

        The reader gets those at the position again: a store may report a write late, at the position of earlier ones.
        """
        if not self._dropped < position <= self.position:
            return None
        return next((change.number - 1 for change in self._log if change.position >= position), self.number)

    def after(self, place: int) -> Batch:
        """The changes after a number that are complete."""
        first = self._log[0].number if self._log else self.number + 1
        newest = {change.job_id: change for change in self._since(place, first) if change.position <= self.position}
        changes = sorted(newest.values(), key=lambda change: change.number)
        following = changes[-1].number if changes else max(place, first - 1)  # so that it misses them once
        return Batch(changes, following, self.position, missed=place < first - 1)

    def _since(self, place: int, first: int) -> Iterator[Change]:
        return islice(self._log, max(0, place + 1 - first), None)
