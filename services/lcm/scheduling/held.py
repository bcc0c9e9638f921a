"""A walk through the queue while nothing may be admitted: the policy's own decisions, with the reason of the hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from services.core.domain.status import PendingReason
from services.lcm.scheduling.placement import Gang
from services.lcm.scheduling.policy import Decision, QueueWalk, Waiter

_FOR_HARDWARE: Final = frozenset({PendingReason.WAITING_FOR_CAPACITY, PendingReason.WAITING_IN_QUEUE})


@dataclass(frozen=True, slots=True)
class Hold:
    """Why nothing may be admitted now."""

    reason: PendingReason
    message: str
    """For people: what holds admission up, and when it goes on."""


class HeldWalk:
    """Wraps a walk for which nothing is free. Jobs that would wait for hardware wait for the end of the hold."""

    def __init__(self, walk: QueueWalk, hold: Hold) -> None:
        """``walk``: begun with nothing free."""
        self._walk, self._hold = walk, hold

    @property
    def blocked(self) -> bool:
        return self._walk.blocked

    def order(self, scanned: Sequence[Waiter]) -> Sequence[Waiter]:
        return self._walk.order(scanned)

    def decide(self, job: Waiter) -> Decision:
        return self._held(self._walk.decide(job))

    def preview(self, gang: Gang) -> Decision:
        return self._held(self._walk.preview(gang))

    def _held(self, decision: Decision) -> Decision:
        if decision.pending_reason not in _FOR_HARDWARE:
            return decision
        return replace(decision, pending_reason=self._hold.reason, message=self._hold.message)
