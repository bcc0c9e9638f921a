"""Chooses the adapters of the guardian service."""

from __future__ import annotations

from services.core.adapters.rpc.server import Guard
from services.core.bootstrap import wiring as core
from services.core.domain.sizes import SIZES
from services.core.failpoints.ports import at_failpoints
from services.guardian.ports import GuardianPorts
from services.guardian.settings import GuardianSettings


async def connect(settings: GuardianSettings) -> tuple[GuardianPorts, Guard]:
    """The ports that the settings name, and what authenticates callers."""
    identity = await core.identity(settings, "guardian")
    status = await core.status_store(settings)
    ports = GuardianPorts(
        jobs=await core.job_store(settings),
        status=status,
        cluster=core.cluster(settings, identity, status),
        hints=core.direct_hints(settings, identity),
        clock=core.clock(),
        summaries=core.telemetry(settings, identity),
        mint=(await core.learner_token_signer(settings)).mint,
        sizes=SIZES,
    )
    return at_failpoints(ports, "guardian"), await core.guard(settings, identity)
