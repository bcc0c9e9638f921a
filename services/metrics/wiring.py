"""Which adapters the metrics service runs on."""

from __future__ import annotations

from dataclasses import dataclass

from services.core import wiring as core
from services.core.adapters.sqlite.metrics import SqliteMetricStore
from services.core.ports.clock import Clock
from services.core.ports.metric_store import MetricStore
from services.core.ports.status_store import StatusStore
from services.metrics.settings import MetricsSettings


@dataclass(frozen=True)
class MetricsPorts:
    store: MetricStore
    status: StatusStore
    clock: Clock
    secret: bytes

    async def close(self) -> None:
        await self.store.close()
        await self.status.close()


async def connect(settings: MetricsSettings) -> MetricsPorts:
    """NoSpace, Unavailable or InvalidRequest where the metric store cannot be opened; etcd may be away."""
    store = await SqliteMetricStore.open(
        settings.place / "metrics", open_jobs=settings.metrics_open_jobs, search_s=settings.metrics_search_s
    )
    return MetricsPorts(
        store=store,
        status=await core.status_store(settings),
        clock=core.clock(),
        secret=await core.service_secret(settings),
    )
