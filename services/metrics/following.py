"""Following a job's lines or points: pages from the store, woken by the append that stored more.

The bell is taken before the store is asked, so what is stored in between rings it; what is given is decided by sequence
number alone. So a follower gets each entry once and in order, over any number of reconnections, and the store is asked
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
_BACK_SOON_S = 0.2


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    entries: list[T]
    through: int
    """The sequence number up to which everything that matches has been given."""
    full: bool
    """There may be more at once."""


class Notifier:
    """One for each job that somebody follows."""

    def __init__(self) -> None:
        self._notifier: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._followers: Counter[str] = Counter()

    def listen(self, job_id: str) -> asyncio.Event:
        """Set at the next ``ring``."""
        bell = self._notifier.get(job_id)
        if bell is None:
            bell = self._notifier[job_id] = asyncio.Event()
        return bell

    def ring(self, job_id: str) -> None:
        bell = self._notifier.pop(job_id, None)
        if bell is not None:
            bell.set()

    @contextmanager
    def followed(self, job_id: str) -> Generator[None]:
        """While within, the job counts as followed."""
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
    """How followers are served: ``pause_s`` between pages, a sign of life each ``keep_alive_s``."""

    notifier: Notifier
    stopping: asyncio.Event
    keep_alive_s: float
    pause_s: float

    async def follow(
        self, job_id: str, after: int, read: Callable[[int], Awaitable[Page[T]]]
    ) -> AsyncGenerator[Page[T]]:
        """Pages for ever; an empty one as a sign of life, the first at once. Unavailable when the service stops.

        ``read`` gives the next page beyond a sequence number.
        """
        now = asyncio.get_running_loop().time
        due = now()
        with self.notifier.followed(job_id):
            while not self.stopping.is_set():
                bell = self.notifier.listen(job_id)
                page = await read(after)
                after = page.through
                if page.entries or now() >= due:
                    yield page
                    due = now() + self.keep_alive_s
                if not page.full and await self._comes(bell, due - now()):
                    await self._comes(self.stopping, self.pause_s)
        raise Unavailable("the metrics service stops; follow again from where this ended", retry_after_s=_BACK_SOON_S)

    async def _comes(self, event: asyncio.Event, timeout: float) -> bool:
        """Waits for the event or for the service's stop, at most so long; whether either came."""
        waits = [asyncio.ensure_future(one.wait()) for one in (event, self.stopping)]
        try:
            done, _ = await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            return bool(done)
        finally:
            for one in waits:
                one.cancel()
