"""Wires the api's services over the adapters that the settings choose, and closes them at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from functools import partial
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from services.api.artifacts import Artifacts
from services.api.clients import DispatcherClient, ServiceClient, TelemetryClient, quarantined_of
from services.api.code_difference import CodeDifferences
from services.api.data_urls import DataUrls
from services.api.following import Following
from services.api.gpu_use import GpuUses, IdleRule
from services.api.held_hardware import HeldHardware
from services.api.idempotency import IdempotencyKeys
from services.api.instrumentation import Instrumentation
from services.api.job_answer import listed
from services.api.job_watcher import Watcher
from services.api.jobs import Jobs
from services.api.keys import Keys, ensure_admin_key, move_pepper, read_pepper
from services.api.platform import Platform
from services.api.pull_secrets import PullSecrets
from services.api.search_budget import SearchBudget
from services.api.services import ApiServices
from services.api.sessions import Sessions
from services.api.settings import ApiSettings
from services.api.storage import Storage, StorageBound
from services.api.submit import Submissions
from services.api.tenant_secrets import TenantSecrets
from services.api.uploads import Uploads
from services.core.bootstrap import wiring
from services.core.bootstrap.kubernetes_offers import devices, library_images
from services.core.domain.errors import Unavailable
from services.core.failpoints.ports import at_failpoint
from services.core.ports.job_store import JobStore
from services.core.runtime.isolation_report import read_isolation
from services.core.runtime.quarantine import Quarantine

_SWEEP_S: Final = 60.0
_SWEPT: Final = 500
"""Records of idempotency keys that each sweep reads."""
log = structlog.get_logger()


@contextlib.asynccontextmanager
async def open_services(
    settings: ApiSettings, *, stopping: asyncio.Event, registry: CollectorRegistry
) -> AsyncGenerator[tuple[ApiServices, JobStore]]:
    """The services, and the job store; closed when the context ends. Makes the first administrator's key.

    Raises InvalidRequest if a setting of the object store is wrong.
    """
    async with contextlib.AsyncExitStack() as closing:
        installation, clock = wiring.installation_secrets(settings), wiring.clock()
        identity = await wiring.identity(settings, "api")
        store = at_failpoint(await wiring.job_store(settings), "jobs", "api")
        closing.push_async_callback(store.close)
        records = at_failpoint(await wiring.record_store(settings), "records", "api")
        closing.push_async_callback(records.close)
        objects = at_failpoint(wiring.object_store(settings), "objects", "api")
        hints = at_failpoint(wiring.hints(settings, identity), "hints", "api")
        closing.push_async_callback(hints.close)
        try:
            await objects.ping()  # wrong settings are reported here and not by the first job
        except Unavailable as error:  # it may come back, and most requests do not need it
            log.warning("object_store.not_reached", error=str(error))
        clients = {
            name: ServiceClient(settings.installation, name, identity.credential(name))
            for name in ("metrics", "lcm", "node", "guardian")
        }
        for client in clients.values():
            closing.push_async_callback(client.close)
        secrets = await wiring.secret_store(settings, records)
        await move_pepper(installation, secrets)
        quarantine = Quarantine(clock.now_ms, registry)
        pepper = await read_pepper(secrets)
        keys = Keys(
            records,
            pepper=pepper,
            clock=clock,
            quarantine=quarantine,
            cache_s=settings.key_cache_s,
            most_of_user=settings.max_user_keys,
        )
        await ensure_admin_key(keys, installation, clock)
        sessions = Sessions(
            records,
            keys,
            pepper=pepper,
            clock=clock,
            quarantine=quarantine,
            cache_s=settings.key_cache_s,
            idle_ms=round(settings.session_s * 1000),
            most_ms=round(settings.session_max_s * 1000),
        )
        uploads = Uploads(
            settings.installation / "uploads",
            max_bytes=settings.max_code_bytes,
            most=settings.max_uploads,
            most_of_tenant=settings.max_tenant_uploads,
        )
        uploads.open()
        closing.callback(uploads.close)
        storage_bound = StorageBound(
            objects, records, clock, most_bytes=settings.tenant_bytes, count_s=settings.tenant_count_s
        )
        closing.push_async_callback(storage_bound.close)
        idempotency_keys = IdempotencyKeys(records, clock)
        sweeping = asyncio.create_task(idempotency_keys.keep_swept(every_s=_SWEEP_S, limit=_SWEPT))
        closing.callback(sweeping.cancel)
        sweeping_sessions = asyncio.create_task(sessions.keep_swept(every_s=_SWEEP_S))
        closing.callback(sweeping_sessions.cancel)
        instrumentation, telemetry = Instrumentation(registry), TelemetryClient(clients["metrics"])
        artifacts = Artifacts(objects, instrumentation)
        searches = SearchBudget(
            clock,
            window_s=settings.tenant_search_s,
            share=settings.tenant_search_share,
            at_a_time=settings.tenant_searches,
        )
        watcher = Watcher(store, every_s=settings.follow_poll_s, render=listed)
        platform = Platform(
            store,
            DispatcherClient(clients["lcm"]),
            quarantine=quarantine,
            others={name: partial(quarantined_of, client) for name, client in clients.items()},
            isolation=partial(read_isolation, settings.installation),
        )
        yield (
            ApiServices(
                settings=settings,
                keys=keys,
                sessions=sessions,
                secrets=TenantSecrets(secrets, clock=clock, most_of_tenant=settings.max_tenant_secrets),
                data_urls=DataUrls(store, secrets, clock),
                pull_secrets=PullSecrets(store, secrets),
                jobs=Jobs(
                    store,
                    idempotency_keys,
                    hints,
                    clock,
                    instrumentation,
                    delete_wait_s=settings.delete_wait_s,
                    poll_s=settings.follow_poll_s,
                ),
                submissions=Submissions(
                    store=store,
                    records=records,
                    objects=objects,
                    hints=hints,
                    clock=clock,
                    platform=platform,
                    instrumentation=instrumentation,
                ),
                uploads=uploads,
                storage_bound=storage_bound,
                searches=searches,
                artifacts=artifacts,
                code_differences=CodeDifferences(artifacts),
                telemetry=telemetry,
                following=Following(store, telemetry, watcher, searches),
                watcher=watcher,
                platform=platform,
                gpu_uses=GpuUses(
                    store, telemetry, clock, IdleRule(window_s=settings.gpu_idle_s, share=settings.gpu_idle_share)
                ),
                held_hardware=HeldHardware(store, clock),
                storage=Storage(objects, clock),
                instrumentation=instrumentation,
                library_images=library_images(settings),
                devices=devices(settings),
                checks={"jobs": store.ping, "records": records.ping, "objects": objects.ping},
                stopping=stopping,
            ),
            store,
        )
