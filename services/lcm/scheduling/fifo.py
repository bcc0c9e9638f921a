"""First in, first out, by whole gangs.

The first job that does not fit blocks all jobs behind it, so no job starves. These jobs block no other: a job that can
never fit on this cluster, that waits out a back-off, whose last attempt still holds hardware, whose spec cannot be
read, or for whose tenant the cluster cannot be made ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.core.domain.status import PendingReason
from services.lcm.scheduling.placement import Free, Gang, describe_excess, describe_shortage, pieces, place, subtract
from services.lcm.scheduling.policy import Decision, Waiter

_SKEW_MS: Final = 5_000
"""A back-off that begins later than this was written by a wrong clock, perhaps by an hour: it is ignored."""
_UNREADABLE: Final = (PendingReason.MISCONFIGURED, "its stored spec cannot be read any more; submit it anew")


class FifoWalk:
    """Decides for one waiting job after the other, in order of submission, and counts down what is free."""

    def __init__(self, *, free: Sequence[Free], capacity: Sequence[Free], now: int) -> None:
        """``free``: before the first job. ``capacity``: of the whole cluster. ``now``: Unix milliseconds."""
        self._free, self._capacity, self._now = list(free), capacity, now
        self._position = 0
        self._blocked_by = ""
        self._never_fits: dict[Gang, str] = {}

    @property
    def blocked(self) -> bool:
        """True once a job waits for hardware: no job behind it can be admitted."""
        return bool(self._blocked_by)

    def order(self, scanned: Sequence[Waiter]) -> Sequence[Waiter]:
        """The order of submission."""
        return scanned

    def decide(self, job: Waiter) -> Decision:
        """The decision for the next job of the queue."""
        self._position += 1
        decision = self._decision(job, self._position)
        if decision.placement is not None and job.gang is not None:
            self._free = subtract(self._free, pieces(job.gang, decision.placement))
        elif decision.pending_reason is PendingReason.WAITING_FOR_CAPACITY:
            self._blocked_by = job.id
        return decision

    def preview(self, gang: Gang) -> Decision:
        """The decision for a job that would be submitted now. Changes nothing."""
        waiter = Waiter("", attempt=0, since=self._now, not_before=0, holds=False, gang=gang)
        return self._decision(waiter, self._position + 1)

    def _decision(self, job: Waiter, position: int) -> Decision:
        if job.gang is None:
            return Decision(job, position, None, *_UNREADABLE)
        reason = self._not_eligible(job) or self._impossible(job.gang)
        if reason is not None:
            return Decision(job, position, None, *reason)
        if self.blocked:
            message = f"job {self._blocked_by} is ahead of it and waits for hardware"
            return Decision(job, position, None, PendingReason.WAITING_IN_QUEUE, message)
        placement = place(job.gang, self._free)
        if placement is None:
            message = f"{describe_shortage(job.gang, self._free)}; it starts when enough is free"
            return Decision(job, position, None, PendingReason.WAITING_FOR_CAPACITY, message)
        return Decision(job, position, placement)

    def _not_eligible(self, job: Waiter) -> tuple[PendingReason, str] | None:
        """Why the job cannot be admitted now whatever is free; None if it can."""
        if job.holds:
            return PendingReason.RELEASING, "its last attempt is still giving back its hardware"
        if job.not_ready:
            return PendingReason.TENANT_NOT_READY, f"{job.not_ready}; it starts by itself once that is put right"
        if job.not_before > self._now and job.since <= self._now + _SKEW_MS:
            return PendingReason.BACK_OFF, f"it is tried again in {(job.not_before - self._now + 999) // 1000} s"
        return None

    def _impossible(self, gang: Gang) -> tuple[PendingReason, str] | None:
        """Why the whole cluster cannot hold the gang; None if it can. Computed once for equal gangs."""
        if gang not in self._never_fits:
            fits = place(gang, self._capacity) is not None
            self._never_fits[gang] = "" if fits else describe_excess(gang, self._capacity)
        if not (excess := self._never_fits[gang]):
            return None
        return (
            PendingReason.TOO_LARGE_FOR_CLUSTER,
            f"{excess}; request less, or ask the operator for more machines",
        )


def decide(queue: Sequence[Waiter], *, free: Sequence[Free], capacity: Sequence[Free], now: int) -> list[Decision]:
    """One decision for each job of the queue, which is in order of submission. ``now``: Unix milliseconds."""
    walk = FifoWalk(free=free, capacity=capacity, now=now)
    return [walk.decide(job) for job in queue]
