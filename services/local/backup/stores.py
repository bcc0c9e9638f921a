"""The stores of an installation, opened through their ports by a command."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final, cast

from services.core.adapters.encrypted import EncryptedSecretStore
from services.core.adapters.sqlite.metrics import SqliteMetricStore
from services.core.bootstrap import wiring
from services.core.ports.job_store import JobStore
from services.core.ports.metric_store import MetricStore
from services.core.ports.object_store import ObjectStore
from services.core.ports.record_store import RecordStore
from services.core.ports.secret_store import SecretStore
from services.core.runtime.settings import Settings
from services.local.backup.retry_policy import Retrying, with_retries

_OPEN_WITHIN_S: Final = 15.0
TENANTS: Final = "tenants/"
"""The prefix of every object's key."""


@dataclass(frozen=True, slots=True)
class Stores:
    settings: Settings
    jobs: JobStore
    records: RecordStore
    objects: ObjectStore
    metrics: MetricStore
    installation: SecretStore

    async def secrets(self) -> EncryptedSecretStore:
        """The secrets in the record store. Opened only when needed: a lost master key must not stop a restore."""
        return await wiring.secret_store(self.settings, self.records)


@contextlib.asynccontextmanager
async def opened(settings: Settings, *, writing: bool) -> AsyncGenerator[Stores]:
    """Opens all stores: ``writing`` while the platform is stopped; otherwise read-only, beside a running platform."""
    async with contextlib.AsyncExitStack() as closing:
        jobs = await with_retries(lambda: wiring.job_store(settings), retry_for_s=_OPEN_WITHIN_S)
        closing.push_async_callback(jobs.close)
        records = await with_retries(lambda: wiring.record_store(settings), retry_for_s=_OPEN_WITHIN_S)
        closing.push_async_callback(records.close)
        metrics_root = settings.installation / "metrics"
        metrics = await SqliteMetricStore.open(metrics_root) if writing else SqliteMetricStore.beside(metrics_root)
        closing.push_async_callback(metrics.close)
        objects = wiring.object_store(settings)
        await with_retries(objects.ping, retry_for_s=_OPEN_WITHIN_S)
        yield Stores(
            settings,
            cast(JobStore, Retrying(jobs)),
            cast(RecordStore, Retrying(records)),
            cast(ObjectStore, Retrying(objects)),
            metrics,
            wiring.installation_secrets(settings),
        )
