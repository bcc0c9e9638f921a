"""Which shard of the metrics service owns a job. It follows from the job's id and the number of shards alone.

Rendezvous hashing: each shard has a pseudo-random weight for the job, and the greatest weight wins. If the number of
shards changes from N to M, a job only moves to a new shard or away from one that is no longer there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from services.core.domain.errors import InvalidRequest

MOST_SHARDS: Final = 64


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of an installation; during a move also the number that there were before."""

    count: int = 1
    before: int | None = None
    """None: no move."""

    def __post_init__(self) -> None:
        for number in (self.count, self.before):
            if number is not None and not 1 <= number <= MOST_SHARDS:
                raise InvalidRequest(f"there are 1 to {MOST_SHARDS} shards, not {number}")

    @property
    def numbers(self) -> range:
        """Of all shards that run, the former ones included."""
        return range(max(self.count, self.before or 1))

    def owner(self, job_id: str) -> int:
        """The shard that takes in and shows what the job reports."""
        return _owner(job_id, self.count)

    def former_owner(self, job_id: str) -> int | None:
        """The shard that had the job before the move; None: it is the same one, or there is no move."""
        if self.before is None or self.before == self.count:
            return None
        former = _owner(job_id, self.before)
        return former if former != self.owner(job_id) else None


@lru_cache(maxsize=100_000)
def _owner(job_id: str, count: int) -> int:
    return max(range(count), key=lambda shard: hashlib.blake2b(f"{shard}/{job_id}".encode(), digest_size=8).digest())
