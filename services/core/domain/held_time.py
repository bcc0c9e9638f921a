"""For how long jobs held hardware: from the admission of an attempt until all that it held was given back. Pure.

The document has the times of its current attempt. Those of earlier attempts are added to ``Job.held_before`` when the
next one is admitted, in the same write, so none is lost or counted twice. The list is bounded: beyond that, the two
periods with the shortest time between them become one, which remembers how long the hardware was held within it.

A clock that was set back can make a period end before it began. Such a period has no length; no sum is ever negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

KEPT_PERIODS: Final = 32
"""How many periods of earlier attempts a document keeps; each takes about 70 bytes."""
HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPeriod:
    """A time in which one attempt, or several that were merged, held hardware."""

    began: int
    """Unix ms of the (first) admission."""
    ended: int
    """Unix ms when the hardware (of the last attempt) had been given back; never before ``began``."""
    held: int
    """Milliseconds of it for which hardware was held: all of it, but for the times between merged attempts."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def within(self, since: int, until: int) -> float:
        """Milliseconds for which hardware was held in [since, until), in Unix ms.

        Of a merged period that the window cuts, the share is that of its whole length.
        """
        length = self.ended - self.began
        if length <= 0:
            return 0.0
        return self.held * max(0, min(self.ended, until) - max(self.began, since)) / length


def with_period(periods: Sequence[HeldPeriod], began: int, ended: int) -> tuple[HeldPeriod, ...]:
    """Returns the periods with that of one more attempt, at most ``KEPT_PERIODS``. Times are Unix ms."""
    ended = max(began, ended)
    longer = [*periods, HeldPeriod(began=began, ended=ended, held=ended - began)]
    while len(longer) > KEPT_PERIODS:
        first = min(range(len(longer) - 1), key=lambda place: longer[place + 1].began - longer[place].ended)
        longer[first : first + 2] = [_merged(longer[first], longer[first + 1])]
    return tuple(longer)


def _merged(first: HeldPeriod, second: HeldPeriod) -> HeldPeriod:
    return HeldPeriod(
        began=min(first.began, second.began),
        ended=max(first.ended, second.ended),
        held=first.held + second.held,
        extra={**first.extra, **second.extra},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldJob:
    """What the use of hardware is computed from: a part of a job's document."""

    id: str
    tenant: str
    user: str
    """The user who submitted it."""
    ended: bool
    """It is COMPLETED, FAILED or KILLED: it will never hold hardware again once ``released`` is set."""
    gpus: float
    """GPUs of all its learners together; may be a fraction."""
    cpus: float
    """CPU cores of all its learners together."""
    admitted: int | None
    """Unix ms when its current attempt was admitted; None: it has none."""
    released: int | None
    """Unix ms when all that the current attempt held had been given back; None: it holds it."""
    held_before: tuple[HeldPeriod, ...] = ()
    """Of its earlier attempts."""

    def held_ms(self, *, since: int, until: int, now: int) -> float:
        """Milliseconds for which it held its hardware in [since, until). Times are Unix ms.

        ``now``: the end of an attempt that still holds it. Never negative.
        """
        earlier = sum(period.within(since, until) for period in self.held_before)
        if self.admitted is None:
            return earlier
        ended = now if self.released is None else self.released
        return earlier + max(0, min(ended, until) - max(self.admitted, since))


@dataclass(slots=True)
class HeldTotal:
    """The use of hardware by several jobs."""

    jobs: int = 0
    """How many held hardware."""
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0

    def add(self, job: HeldJob, held_ms: float) -> None:
        """Counts a job that held its hardware for so long; not at all if it held none."""
        if held_ms <= 0:
            return
        self.jobs += 1
        self.gpu_hours += job.gpus * held_ms / HOUR_MS
        self.cpu_hours += job.cpus * held_ms / HOUR_MS
