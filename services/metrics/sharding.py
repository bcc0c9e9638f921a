"""This service as one of several shards (docs/adr/0026-shards-of-the-metrics-service.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from prometheus_client import Gauge

from services.core.adapters.rpc.client import Credential
from services.core.adapters.rpc.operations import OthersQuarantine
from services.core.ports.clock import Clock
from services.core.ports.metric_store import MetricStore
from services.metrics.rpc.intake import Intake
from services.metrics.rpc.routed import RoutedColumns, RoutedIntake, RoutedTelemetry, quarantine_of_others
from services.metrics.rpc.shards import Shard
from services.metrics.rpc.telemetry import Telemetry
from services.metrics.settings import MetricsSettings
from services.metrics.shards.agreement import Agreement
from services.metrics.shards.moves import Moves
from services.metrics.shards.routing import Routing
from services.metrics.shards.siblings import Sibling, siblings
from services.metrics.shards.volume import Volume, check


@dataclass(frozen=True)
class Sharding:
    """What a service needs as one of several shards. The only shard routes nothing."""

    siblings: Mapping[int, Sibling]
    """The other shards; empty: there are none."""
    routing: Routing
    servicer: Shard
    moves: Moves

    def routed(self, intake: Intake, telemetry: Telemetry) -> tuple[Intake, Telemetry]:
        """The same, which forward calls of other shards' jobs."""
        if not self.siblings:
            return intake, telemetry
        over_all = replace(telemetry, columns=RoutedColumns(telemetry.store, self.routing))
        return (
            RoutedIntake(**_fields(intake), routing=self.routing),
            RoutedTelemetry(**_fields(over_all), routing=self.routing),
        )

    @property
    def quarantine_of_others(self) -> OthersQuarantine:
        return quarantine_of_others(self.siblings)

    async def complete(self) -> None:
        """Waits until all shards agree, and fetches the jobs that have moved here."""
        if self.siblings:
            await self.moves.complete()

    async def close(self) -> None:
        for sibling in self.siblings.values():
            await sibling.close()


async def sharding(
    settings: MetricsSettings, store: MetricStore, clock: Clock, credential: Credential, moving: Gauge
) -> Sharding:
    """This service's place among the shards.

    ``credential``: for calls of other shards. ``moving``: the number of jobs that have still to be fetched from them.
    Raises InvalidRequest for settings that do not continue what the volume was used with.
    """
    shards, shard, volume = settings.shards, settings.metrics_shard, Volume(settings.installation / "metrics")
    agreed = volume.read()
    if agreed is not None or len(shards.numbers) > 1:
        check(shards, shard, agreed, await store.job_ids())
    others = {number: settings.shard_address(number) for number in shards.numbers if number != shard}
    connected = siblings(others, credential)
    agreement = Agreement(shards, connected, volume, clock)
    moves = Moves(shards, shard, agreement, store, moving)
    routing = Routing(shards, shard, agreement, moves)
    return Sharding(connected, routing, Shard(shards, shard, store, moves.ensure), moves)


def _fields(of: Intake | Telemetry) -> dict[str, Any]:
    return {field.name: getattr(of, field.name) for field in fields(of)}
