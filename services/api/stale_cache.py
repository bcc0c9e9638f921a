"""The job store's last answers, for reads while it is away. No decision uses them.

A stale answer is given only inside ``reporting_age``, whose caller tells the client how old it is, and only for ten
minutes.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from services.api.packed_jobs import pack, unpack
from services.core.domain.errors import Unavailable
from services.core.domain.job import Job
from services.core.ports.clock import Clock

STALE_S: Final = 600.0
_ENTRY_BYTES: Final = 1024
"""What an answer takes besides its question and its jobs, rounded up: empty answers are bounded as well."""


@dataclass
class Age:
    """Seconds since the oldest stale answer was read; None if all were fresh."""

    seconds: float | None = None


_age: ContextVar[Age | None] = ContextVar("age", default=None)


@contextmanager
def reporting_age() -> Generator[Age]:
    """Inside it stale answers are allowed; the caller reports their age."""
    age = Age()
    token = _age.set(age)
    try:
        yield age
    finally:
        _age.reset(token)


@dataclass(frozen=True, slots=True)
class _Answer:
    read_at: float
    """Seconds since boot."""
    size: int
    """Bytes, as they are counted."""
    packed: Sequence[bytes]
    """The jobs."""


class StaleCache:
    """The last answers to different questions, in ``most_bytes`` at most: a tenant chooses how large its jobs are, and
    how many different lists it reads.

    The answers are kept as bytes, whose size is known. Those that were not read for the longest time are removed first.
    An answer of more than a sixteenth of the bound is not kept: it would take the place of many others.
    """

    def __init__(self, clock: Clock, *, most_bytes: int) -> None:
        self._clock = clock
        self._most = most_bytes
        self._answers: OrderedDict[Hashable, _Answer] = OrderedDict()
        self.size = 0
        """Bytes of all answers, as they are counted."""

    async def read(self, question: Hashable, read: Callable[[], Awaitable[Sequence[Job]]]) -> Sequence[Job]:
        """The result of ``read``; if that raises Unavailable, the last result for this question.

        Raises Unavailable if there is none, it is older than ``STALE_S``, or no ``reporting_age`` is open.
        """
        now = self._clock.boottime()
        try:
            jobs = await read()
        except Unavailable:
            age, last = _age.get(), self._answers.get(question)
            if age is None or last is None or now - last.read_at > STALE_S:
                raise
            age.seconds = max(age.seconds or 0.0, self._clock.boottime() - last.read_at)
            return [unpack(packed) for packed in last.packed]
        last = self._answers.get(question)
        if last is not None and last.read_at > now:  # a read that began later was quicker
            return jobs
        self._remove(question)
        answer = self._packed(question, jobs, now)
        if answer is not None:
            self._answers[question] = answer
            self.size += answer.size
        while self.size > self._most:
            self._remove(next(iter(self._answers)))
        return jobs

    def _packed(self, question: Hashable, jobs: Sequence[Job], now: float) -> _Answer | None:
        """None: it is too large, or a job has values that cannot be packed."""
        size, documents = _ENTRY_BYTES + sys.getsizeof(repr(question)), []
        for job in jobs:
            packed = pack(job)
            size += sys.getsizeof(packed)
            if packed is None or size > self._most // 16:
                return None
            documents.append(packed)
        return _Answer(now, size, documents)

    def _remove(self, question: Hashable) -> None:
        removed = self._answers.pop(question, None)
        if removed is not None:
            self.size -= removed.size
