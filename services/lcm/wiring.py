"""Chooses the adapters of the life-cycle manager."""

from __future__ import annotations

from dataclasses import dataclass

from services.core.bootstrap import wiring as core
from services.core.failpoints.ports import at_failpoint, at_failpoints
from services.core.ports.clock import Clock
from services.core.ports.cluster import Cluster
from services.core.ports.hints import Hints
from services.core.ports.job_store import JobStore
from services.core.ports.status_store import StatusStore
from services.lcm.erasure import ErasurePorts
from services.lcm.settings import LcmSettings


@dataclass(frozen=True)
class LcmPorts:
    jobs: JobStore
    status: StatusStore
    cluster: Cluster
    hints: Hints
    clock: Clock
    secret: bytes

    async def close(self) -> None:
        await self.hints.close()
        await self.cluster.close()
        await self.status.close()
        await self.jobs.close()


async def connect_erasure(settings: LcmSettings, ports: LcmPorts) -> ErasurePorts:
    """The ports of the erasure, beside ``ports``. Close ``records`` and ``telemetry`` at the end."""
    return ErasurePorts(
        jobs=ports.jobs,
        records=at_failpoint(await core.record_store(settings), "records", "lcm"),
        objects=at_failpoint(core.object_store(settings), "objects", "lcm"),
        telemetry=at_failpoint(core.telemetry(settings, ports.secret), "telemetry", "lcm"),
        clock=ports.clock,
    )


async def connect(settings: LcmSettings) -> LcmPorts:
    """The ports that the settings name."""
    secret = await core.service_secret(settings)
    ports = LcmPorts(
        jobs=await core.job_store(settings),
        status=await core.status_store(settings),
        cluster=core.cluster(settings, secret),
        hints=core.direct_hints(settings, secret),
        clock=core.clock(),
        secret=secret,
    )
    return at_failpoints(ports, "lcm")
