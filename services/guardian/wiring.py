"""Chooses the adapters of the guardian service."""

from __future__ import annotations

from services.core.bootstrap import wiring as core
from services.core.domain.sizes import SIZES
from services.core.failpoints.ports import at_failpoints
from services.guardian.ports import GuardianPorts
from services.guardian.settings import GuardianSettings


async def connect(settings: GuardianSettings) -> GuardianPorts:
    """The ports that the settings name."""
    secret = await core.service_secret(settings)
    ports = GuardianPorts(
        jobs=await core.job_store(settings),
        status=await core.status_store(settings),
        cluster=core.cluster(settings, secret),
        hints=core.direct_hints(settings, secret),
        clock=core.clock(),
        summaries=core.telemetry(settings, secret),
        secret=secret,
        sizes=SIZES,
    )
    return at_failpoints(ports, "guardian")
