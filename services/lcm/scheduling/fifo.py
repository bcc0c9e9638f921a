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
from services.core.domain.sizes import Size
from services.core.domain.spec import JobSpec
from services.lcm.scheduling.placement import Free, Shape, place, shape, shortage, taken

BLOCKS: Final = "WaitingForCapacity"
"""The reason of the one that makes everyone behind it wait."""
_SKEW_MS: Final = 5_000
"""A wait that begins later than this was written by a clock that was wrong, by perhaps an hour: nobody waits for it."""
_UNREADABLE: Final = ("Misconfigured", "its stored spec cannot be read any more; submit it anew")


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to one waiting job now: a placement, or the reason why it waits."""

    job: Job
    position: int
    placement: Mapping[str, str] | None
    pending_reason: str = ""
    message: str = ""


def decide(
    queue: Sequence[tuple[Job, JobSpec | None]],
    *,
    free: Sequence[Free],
    capacity: Sequence[Free],
    sizes: Mapping[str, Size],
    now: int,
) -> list[Decision]:
    """A decision for every job of the queue, which is in order of submission. ``spec`` None: it cannot be read."""
    left, out, blocker = list(free), [], ""
    never: dict[Shape, str] = {}
    for position, (job, spec) in enumerate(queue, start=1):
        placement: Mapping[str, str] | None = None
        if spec is None:
            why: tuple[str, str] | None = _UNREADABLE
        else:
            why = _set_aside(job, now) or _never_fits(spec, capacity, sizes, never)
        if why is None and blocker:
            why = "WaitingInQueue", f"job {blocker} is ahead of it and waits for hardware"
        if why is None and spec is not None:
            placement = place(spec, left, sizes)
            if placement is None:
                blocker, why = job.id, (BLOCKS, f"{shortage(spec, left, sizes)}; it starts when enough is free")
            else:
                left = taken(left, [(spec, placement)], sizes)
        reason, message = why or ("", "")
        out.append(Decision(job, position, placement, reason, message))
    return out


def _set_aside(job: Job, now: int) -> tuple[str, str] | None:
    """Why the job does not take part now, whatever is free; None: it does."""
    if job.holds:
        return "Releasing", "its last attempt is still giving back its hardware"
    if job.not_before > now and job.state.since <= now + _SKEW_MS:
        return "BackOff", f"it is tried again in {(job.not_before - now + 999) // 1000} s"
    return None


def _never_fits(
    spec: JobSpec, capacity: Sequence[Free], sizes: Mapping[str, Size], never: dict[Shape, str]
) -> tuple[str, str] | None:
    """Why the whole cluster could not hold it; None: it could. ``never``: what was found for each shape before."""
    kind = shape(spec, sizes)
    if kind not in never:
        lacks = "" if place(spec, capacity, sizes) else shortage(spec, capacity, sizes).replace(" free", " in all")
        never[kind] = lacks and f"this cluster can never hold it: {lacks}; ask for less, or add machines"
    return ("NoMatchingFlavor", never[kind]) if never[kind] else None
