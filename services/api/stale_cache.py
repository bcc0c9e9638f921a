"""The job store's last answers, for reads while it is away. No decision uses them.

A stale answer is given only inside ``reporting_age``, whose caller tells the client how old it is, and only for ten
minutes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Hashable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from services.core.domain.errors import Unavailable
from services.core.ports.clock import Clock

T = TypeVar("T")
STALE_S: Final = 600.0


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


class StaleCache(Generic[T]):
    """The last answers to ``most`` different questions."""

    def __init__(self, clock: Clock, *, most: int) -> None:
        self._clock = clock
        self._most = most
        self._answers: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()

    async def read(self, question: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """The result of ``read``; if that raises Unavailable, the last result for this question.

        Raises Unavailable if there is none, it is older than ``STALE_S``, or no ``reporting_age`` is open.
        """
        now = self._clock.boottime()
        try:
            answer = await read()
        except Unavailable:
            age, last = _age.get(), self._answers.get(question)
            if age is None or last is None or now - last[0] > STALE_S:
                raise
            age.seconds = max(age.seconds or 0.0, self._clock.boottime() - last[0])
            return last[1]
        self._answers[question] = (now, answer)
        self._answers.move_to_end(question)
        while len(self._answers) > self._most:
            self._answers.popitem(last=False)
        return answer
