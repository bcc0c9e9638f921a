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
from services.lcm.scheduling.placement import Free, place, shortage, taken

BLOCKS: Final = "WaitingForCapacity"
"""The reason of the one that makes everyone behind it wait."""


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
    for position, (job, spec) in enumerate(queue, start=1):

        def waits(reason: str, message: str, *, job: Job = job, position: int = position) -> Decision:
            return Decision(job, position, None, reason, message)

        if spec is None:
            out.append(waits("Misconfigured", "its stored spec cannot be read any more; submit it anew"))
        elif job.holds:
            out.append(waits("Releasing", "its last attempt is still giving back its hardware"))
        elif job.not_before > now:
            seconds = (job.not_before - now + 999) // 1000
            out.append(waits("BackOff", f"it is tried again in {seconds} s"))
        elif place(spec, capacity, sizes) is None:
            out.append(
                waits(
                    "NoMatchingFlavor",
                    f"this cluster can never hold it: {shortage(spec, capacity, sizes).replace(' free', ' in all')};"
                    " ask for less, or add machines",
                )
            )
        elif blocker:
            out.append(waits("WaitingInQueue", f"job {blocker} is ahead of it and waits for hardware"))
        elif (placement := place(spec, left, sizes)) is None:
            blocker = job.id
            out.append(waits(BLOCKS, f"{shortage(spec, left, sizes)}; it starts when enough is free"))
        else:
            left = taken(left, spec, placement, sizes)
            out.append(Decision(job, position, placement))
    return out
