"""Following a job's lines or points: pages from the store, woken by the append that stored more.

A follower takes its event before it reads the store, so an append between the two sets it. Which entries a follower
gets depends on sequence numbers only: each entry once and in order, over any number of reconnections. The store is read
only when there is something new.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from services.core.domain.errors import Unavailable

T = TypeVar("T")
_RETRY_AFTER_S = 0.2


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    entries: list[T]
    through: int
    """All matching entries up to this sequence number have been delivered."""
    full: bool
    """True if the next page may already have entries."""


class Notifier:
    """Wakes the followers of a job: one event per followed job."""

    def __init__(self) -> None:
        self._events: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._followers: Counter[str] = Counter()

    def listen(self, job_id: str) -> asyncio.Event:
        """An event that the next ``notify`` for the job sets."""
        event = self._events.get(job_id)
        if event is None:
            event = self._events[job_id] = asyncio.Event()
        return event

    def notify(self, job_id: str) -> None:
        """Wakes all that listen for this job now."""
        event = self._events.pop(job_id, None)
        if event is not None:
            event.set()

    @contextmanager
    def followed(self, job_id: str) -> Generator[None]:
        """The job counts as followed within the context."""
        self._followers[job_id] += 1
        try:
            yield
        finally:
            self._followers[job_id] -= 1
            if not self._followers[job_id]:
                del self._followers[job_id]

    def is_followed(self, job_id: str) -> bool:
        return job_id in self._followers


@dataclass(frozen=True, slots=True)
class Follower(Generic[T]):
    """Serves followers: ``pause_s`` seconds between pages, an empty page after ``keep_alive_s`` seconds of silence."""

    notifier: Notifier
    stopping: asyncio.Event
    keep_alive_s: float
    pause_s: float

    async def follow(
        self, job_id: str, after: int, read: Callable[[int], Awaitable[Page[T]]]
    ) -> AsyncGenerator[Page[T]]:
        """Yields pages without end, the first at once; empty pages are keep-alives.

        ``read`` returns the next page after a sequence number. Raises Unavailable when the service stops.
        """
        now = asyncio.get_running_loop().time
        due = now()
        with self.notifier.followed(job_id):
            while not self.stopping.is_set():
                stored_more = self.notifier.listen(job_id)
                page = await read(after)
                after = page.through
                if page.entries or now() >= due:
                    yield page
                    due = now() + self.keep_alive_s
                if not page.full and await self._wait(stored_more, due - now()):
                    await self._wait(self.stopping, self.pause_s)
        raise Unavailable(
            "the metrics service is stopping; follow again from the last sequence number", retry_after_s=_RETRY_AFTER_S
        )

    async def _wait(self, event: asyncio.Event, timeout: float) -> bool:
        """Waits for the event or the stop of the service, at most ``timeout`` seconds; False if neither came."""
        waits = [asyncio.ensure_future(awaited.wait()) for awaited in (event, self.stopping)]
        try:
            done, _ = await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            return bool(done)
        finally:
            for wait in waits:
                wait.cancel()
