"""A scheduling policy decides, job by job in an order of its own, which waiting job is admitted and on which nodes.

A policy is pure: what is free, the capacity and the time come in as arguments. Policies are named in
services/lcm/scheduling/policies.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.core.domain.job import Job
from services.core.domain.status import PendingReason
from services.lcm.scheduling.placement import Free, Gang


@dataclass(frozen=True, slots=True)
class Waiter:
    """The part of a waiting job's document that the policy needs: thousands of whole documents would be too large."""

    id: str
    attempt: int
    """The number of its last attempt; 0 before the first."""
    since: int
    """When it began to wait, in Unix milliseconds."""
    not_before: int
    """The end of its back-off, in Unix milliseconds."""
    holds: bool
    gang: Gang | None
    """None if its spec cannot be read."""
    tenant: str = ""
    rev: int = 0
    """Revision of its document."""
    not_ready: str = ""
    """Why the cluster can take no job of its tenant now, for people; empty: it can."""

    @classmethod
    def of(cls, job: Job, gang: Gang | None) -> Waiter:
        return cls(job.id, job.attempt.number, job.state.since, job.not_before, job.holds, gang, job.tenant, job.rev)


@dataclass(frozen=True, slots=True)
class Decision:
    """The result for one waiting job: a placement, or the reason why it waits."""

    job: Waiter
    position: int
    """In the queue, from 1."""
    placement: Mapping[str, str] | None
    """Learner -> node; None if the job waits."""
    pending_reason: PendingReason | None = None
    """None if the job is admitted."""
    message: str = ""


class QueueWalk(Protocol):
    """One walk of a policy through the queue. It counts down what is free as it admits jobs."""

    @property
    def blocked(self) -> bool:
        """True once no job further behind can be admitted in this walk."""
        ...

    def order(self, scanned: Sequence[Waiter]) -> Sequence[Waiter]:
        """The jobs of one scan of the queue, which are in order of submission, in the order of their decisions.

        A scan has at most WEFT_QUEUE_SCAN jobs. The next scan follows if it is full and the walk is not ``blocked``.
        """
        ...

    def decide(self, job: Waiter) -> Decision:
        """The decision for the next job in this order."""
        ...

    def preview(self, gang: Gang) -> Decision:
        """The decision for a job that would be submitted now. Changes nothing."""
        ...


class Policy(Protocol):
    def __call__(self, *, free: Sequence[Free], capacity: Sequence[Free], now: int) -> QueueWalk:
        """Begins a walk. ``free``: before its first job. ``capacity``: of the whole cluster. ``now``: Unix ms."""
        ...
