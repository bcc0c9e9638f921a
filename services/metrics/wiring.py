"""Chooses the adapters of the metrics service."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from services.core.adapters.sqlite.metrics import SqliteMetricStore
from services.core.bootstrap import wiring as core
from services.core.bootstrap.service import raise_file_limit
from services.core.failpoints.ports import at_failpoints
from services.core.ports.clock import Clock
from services.core.ports.metric_store import JobBounds, MetricStore
from services.core.ports.object_store import ObjectStore
from services.core.ports.status_store import StatusStore
from services.metrics.settings import MetricsSettings

_FILES_PER_JOB: Final = 8
"""Six per open job, and some for connections."""


@dataclass(frozen=True)
class MetricsPorts:
    store: MetricStore
    status: StatusStore
    clock: Clock

    async def close(self) -> None:
        await self.store.close()
        await self.status.close()


def affordable(open_jobs: int) -> int:
    """``open_jobs``, or fewer if the limit of open files is too low. Raises the soft limit to the hard one first."""
    soft = raise_file_limit()
    return open_jobs if soft == resource.RLIM_INFINITY else max(1, min(open_jobs, soft // _FILES_PER_JOB))


async def connect(settings: MetricsSettings, on_left_out: Callable[[str, int], None]) -> MetricsPorts:
    """Opens the ports; etcd may be away. ``on_left_out(bound, count)``: see ``SqliteMetricStore.open``.

    Raises NoSpace, Unavailable or InvalidRequest if the metric store cannot be opened.
    """
    store = await SqliteMetricStore.open(
        settings.installation / "metrics",
        open_jobs=affordable(settings.metrics_open_jobs),
        search_s=settings.metrics_search_s,
        bounds=JobBounds(
            log_bytes=settings.metrics_job_log_bytes,
            points=settings.metrics_job_points,
            series=settings.metrics_job_series,
            sources=settings.metrics_job_sources,
        ),
        on_left_out=on_left_out,
    )
    ports = MetricsPorts(
        store=store,
        status=await core.status_store(settings),
        clock=core.clock(),
    )
    return at_failpoints(ports, "metrics")


def objects_for_pods(settings: MetricsSettings) -> ObjectStore | None:
    """The object store whose bytes this service moves for learners in pods; None if they have another way to it."""
    if settings.learners_address is None or core.object_urls(settings) is not None:
        return None
    return core.object_store(settings)
