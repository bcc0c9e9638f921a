"""What the job store said last, for who merely looks while it does not answer. Nothing is decided from it.

It is shown only through a door that says how old it is (``telling_age``), and to nobody for longer than ten minutes.
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
    """Of what was shown: seconds, or None where it was fresh."""

    seconds: float | None = None


_age: ContextVar[Age | None] = ContextVar("age", default=None)


@contextmanager
def reporting_age() -> Generator[Age]:
    """Inside it, remembered answers may be given; whoever opened it tells how old they are."""
    age = Age()
    token = _age.set(age)
    try:
        yield age
    finally:
        _age.reset(token)


class StaleCache(Generic[T]):
    def __init__(self, clock: Clock, *, most: int) -> None:
        self._clock = clock
        self._most = most
        self._known: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()

    async def ask(self, question: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """What ``read`` says; where it raises Unavailable what it said last to this question, if anything."""
        now = self._clock.boottime()
        try:
            found = await read()
        except Unavailable:
            age, known = _age.get(), self._known.get(question)
            if age is None or known is None or now - known[0] > STALE_S:
                raise
            age.seconds = max(age.seconds or 0.0, self._clock.boottime() - known[0])
            return known[1]
        self._known[question] = (now, found)
        self._known.move_to_end(question)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return found
