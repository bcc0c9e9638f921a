"""First in, first out, by whole gangs.

The first job that does not fit makes everyone behind it wait, so nobody starves; jobs that can never fit on this
cluster, that wait out a back-off, whose last attempt still holds hardware, or that nobody can read do not stand in
anyone's way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.core.domain.job import Job
from services.lcm.scheduling.placement import Free, Gang, place, shortage, taken

BLOCKS: Final = "WaitingForCapacity"
"""The reason of the one that makes everyone behind it wait."""
_SKEW_MS: Final = 5_000
"""A wait that begins later than this was written by a clock that was wrong, by perhaps an hour: nobody waits for it."""
_UNREADABLE: Final = ("Misconfigured", "its stored spec cannot be read any more; submit it anew")


@dataclass(frozen=True, slots=True)
class Waiter:
    """What of a waiting job's document its turn rests on: documents are many times larger, and thousands may wait."""

    id: str
    attempt: int
    """The number of its last one; 0: it has had none."""
    since: int
    not_before: int
    """Both in milliseconds of the epoch."""
    holds: bool
    gang: Gang | None
    """None: its spec cannot be read."""

    @classmethod
    def of(cls, job: Job, gang: Gang | None) -> Waiter:
        return cls(job.id, job.attempt.number, job.state.since, job.not_before, job.holds, gang)


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to one waiting job now: a placement, or the reason why it waits."""

    job: Waiter
    position: int
    placement: Mapping[str, str] | None
    pending_reason: str = ""
    message: str = ""


def decide(queue: Sequence[Waiter], *, free: Sequence[Free], capacity: Sequence[Free], now: int) -> list[Decision]:
    """A decision for every job of the queue, which is in order of submission."""
    left, out, behind = list(free), [], None
    never: dict[Gang, tuple[str, str] | None] = {}
    for position, job in enumerate(queue, start=1):
        placement: Mapping[str, str] | None = None
        if job.gang is None:
            why: tuple[str, str] | None = _UNREADABLE
        else:
            why = _set_aside(job, now) or _never_fits(job.gang, capacity, never) or behind
        if why is None and job.gang is not None:
            placement = place(job.gang, left)
            if placement is None:
                why = BLOCKS, f"{shortage(job.gang, left)}; it starts when enough is free"
                behind = "WaitingInQueue", f"job {job.id} is ahead of it and waits for hardware"
            else:
                left = taken(left, [(job.gang, placement)])
        reason, message = why or ("", "")
        out.append(Decision(job, position, placement, reason, message))
    return out


def _set_aside(job: Waiter, now: int) -> tuple[str, str] | None:
    """Why the job does not take part now, whatever is free; None: it does."""
    if job.holds:
        return "Releasing", "its last attempt is still giving back its hardware"
    if job.not_before > now and job.since <= now + _SKEW_MS:
        return "BackOff", f"it is tried again in {(job.not_before - now + 999) // 1000} s"
    return None


def _never_fits(
    gang: Gang, capacity: Sequence[Free], never: dict[Gang, tuple[str, str] | None]
) -> tuple[str, str] | None:
    """Why the whole cluster could not hold it; None: it could. ``never``: what was found for equal gangs before."""
    if gang not in never:
        lacks = "" if place(gang, capacity) else shortage(gang, capacity).replace(" free", " in all")
        why = f"this cluster can never hold it: {lacks}; ask for less, or add machines"
        never[gang] = ("NoMatchingFlavor", why) if lacks else None
    return never[gang]
