"""Whether all shards run with the same numbers. Before that, none serves calls of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from services.core.adapters.rpc.client import translating
from services.core.domain.errors import Unavailable, WeftError
from services.core.domain.shards import Shards
from services.core.gen.weft.v1 import metrics_pb2 as pb
from services.core.ports.clock import Clock
from services.metrics.shards.siblings import Sibling
from services.metrics.shards.volume import Agreed, Volume

_EVERY_S: Final = 1.0
_CALL_S: Final = 5.0
_LOG_S: Final = 30.0
log = structlog.get_logger()


class Agreement:
    """``reached`` once all shards have answered with our numbers, now or, according to the volume, earlier."""

    def __init__(self, shards: Shards, siblings: Mapping[int, Sibling], volume: Volume, clock: Clock) -> None:
        self._shards = shards
        self.siblings, self.volume, self.clock = siblings, volume, clock
        agreed = volume.read()
        self.reached = agreed is not None and agreed.shards == shards

    async def reach(self) -> None:
        """Asks the other shards, again every second until they all agree."""
        logged_at = float("-inf")
        while not self.reached:
            waits = [why for sibling in self.siblings.values() if (why := await self._differs(sibling)) is not None]
            if not waits:
                # On a full volume they are recorded after the move. Until then a restart only agrees once more.
                self.volume.record(Agreed(self._shards.count, self._shards.before))
                self.reached = True
                log.info("shards.agreed", count=self._shards.count, before=self._shards.before)
                return
            if self.clock.boottime() - logged_at >= _LOG_S:
                logged_at = self.clock.boottime()
                log.warning("shards.waiting", count=self._shards.count, before=self._shards.before, waits=waits)
            await self.clock.sleep(_EVERY_S)

    async def _differs(self, sibling: Sibling) -> str | None:
        """Why the other shard does not agree yet; None: it does."""
        try:
            with translating(f"shard {sibling.shard}"):
                reply = await sibling.shards.Describe(pb.DescribeRequest(), timeout=_CALL_S)
        except WeftError as error:
            return error.message
        if numbers_of(reply.numbers) == self._shards:
            return None
        return (
            f"shard {sibling.shard} runs with {reply.numbers.count} shards (before: {reply.numbers.before or 'none'})"
        )

    def require(self) -> None:
        """Raises Unavailable until it is reached."""
        if not self.reached:
            raise Unavailable(
                "the shards of the metrics service do not run with the same settings yet", retry_after_s=1
            )


def numbers_of(message: pb.ShardNumbers) -> Shards | None:
    """None for numbers that are not possible."""
    try:
        return Shards(message.count, message.before or None)
    except WeftError:
        return None


def numbers_message(shards: Shards) -> pb.ShardNumbers:
    """As the shards send them."""
    return pb.ShardNumbers(count=shards.count, before=shards.before or 0)
