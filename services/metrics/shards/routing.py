"""Which shard answers a call: every shard takes every call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.core.domain.errors import Unavailable
from services.core.domain.shards import Shards
from services.metrics.shards.agreement import Agreement
from services.metrics.shards.moves import Moves
from services.metrics.shards.siblings import FORWARDED, Sibling


class Routing:
    """Who owns a job."""

    def __init__(self, shards: Shards, shard: int, agreement: Agreement, moves: Moves) -> None:
        """``shard``: the number of this one."""
        self._shards, self._shard, self._agreement, self._moves = shards, shard, agreement, moves

    async def owner(self, job_id: str, context: Any = None) -> Sibling | None:
        """The shard to forward a call to; None: this one, whose store has the job's data now.

        ``context``: that of the call, if another shard may have forwarded it. Raises Unavailable while the shards do
        not agree, or the job's data is not here yet.
        """
        self._agreement.require()
        owner = self._shards.owner(job_id)
        if owner == self._shard:
            await self._moves.ensure(job_id)
            return None
        if context is not None and is_forwarded(context):
            raise Unavailable("the shards of the metrics service do not agree yet", retry_after_s=1)
        return self._agreement.siblings[owner]

    async def by_owner(self, job_ids: Sequence[str], context: Any) -> Sequence[tuple[Sibling | None, Sequence[str]]]:
        """Each owner with its part of the jobs; None: this shard. Raises as ``owner``."""
        owners: dict[int, Sibling | None] = {}
        parts: dict[int, list[str]] = {}
        for job_id in job_ids:
            shard = self._shards.owner(job_id)
            owners[shard] = await self.owner(job_id, context)
            parts.setdefault(shard, []).append(job_id)
        return [(owners[shard], ids) for shard, ids in parts.items()]


def is_forwarded(context: Any) -> bool:
    """Whether another shard has forwarded the call."""
    return FORWARDED in dict(context.invocation_metadata() or ())
