"""Chooses the learners that are ended when several together use too much of the disk: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Share:
    """The part of one learner in what is used too much."""

    folder: Path
    """The learner's."""
    tenant: str
    amount: int
    """Bytes, or files."""
    is_frozen: bool = True
    """False: its processes ran during the count, and may have hidden files from it."""
    is_being_ended: bool = False
    """True: it was killed, and its last process is not gone yet."""


def to_end(shares: Iterable[Share], excess: int) -> list[Share]:
    """Learners whose amounts together are at least ``excess``; all of them if the sum is less.

    Each time the largest learner of the tenant that has most then: many small learners of one tenant do not win against
    another tenant's single one. Learners that are being ended come first, so that no other is ended while they are;
    then those that could not be frozen.
    """
    left, chosen = list(shares), list[Share]()
    of_tenants = Counter[str]()
    for share in left:
        of_tenants[share.tenant] += share.amount

    def precedence(share: Share) -> tuple[bool, bool, int, int]:
        return share.is_being_ended, not share.is_frozen, of_tenants[share.tenant], share.amount

    while excess > 0 and left:
        worst = max(left, key=precedence)
        left.remove(worst)
        chosen.append(worst)
        of_tenants[worst.tenant] -= worst.amount
        excess -= worst.amount
    return chosen
