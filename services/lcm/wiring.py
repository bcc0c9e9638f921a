"""Chooses the adapters of the life-cycle manager."""

from __future__ import annotations

from dataclasses import dataclass

from services.core.adapters.rpc.server import Guard
from services.core.bootstrap import wiring as core
from services.core.failpoints.ports import at_failpoint, at_failpoints
from services.core.ports.clock import Clock
from services.core.ports.cluster import Cluster
from services.core.ports.guardian_launcher import GuardianLauncher
from services.core.ports.hints import Hints
from services.core.ports.job_store import JobStore
from services.core.ports.status_store import StatusStore
from services.core.runtime.free_space import FreeSpace
from services.lcm.erasure import ErasurePorts
from services.lcm.settings import LcmSettings


@dataclass(frozen=True)
class LcmPorts:
    jobs: JobStore
    status: StatusStore
    cluster: Cluster
    hints: Hints
    clock: Clock
    launcher: GuardianLauncher | None = None
    """None: a pool guards all jobs."""

    async def close(self) -> None:
        if self.launcher is not None:
            await self.launcher.close()
        await self.hints.close()
        await self.cluster.close()
        await self.status.close()
        await self.jobs.close()


def free_space(settings: LcmSettings) -> FreeSpace:
    """The file systems of stores that are on this machine; servers elsewhere have their own limits."""
    home = settings.installation
    folders = [("the platform", home.root)]
    folders += [("the object store", home / "objects")] if settings.object_store == "folder" else []
    return FreeSpace(folders, settings.disk_free_bytes, settings.disk_free_percent)


async def connect_erasure(settings: LcmSettings, ports: LcmPorts) -> ErasurePorts:
    """The ports of the erasure, beside ``ports``. Close ``records`` and ``telemetry`` at the end."""
    identity = await core.identity(settings, "lcm")
    return ErasurePorts(
        jobs=ports.jobs,
        records=at_failpoint(await core.record_store(settings), "records", "lcm"),
        objects=at_failpoint(core.object_store(settings), "objects", "lcm"),
        telemetry=at_failpoint(core.telemetry(settings, identity), "telemetry", "lcm"),
        clock=ports.clock,
    )


async def connect(settings: LcmSettings) -> tuple[LcmPorts, Guard]:
    """The ports that the settings name, and what authenticates callers."""
    identity = await core.identity(settings, "lcm")
    status = await core.status_store(settings)
    ports = LcmPorts(
        jobs=await core.job_store(settings),
        status=status,
        cluster=core.cluster(settings, identity, status),
        hints=core.direct_hints(settings, identity),
        clock=core.clock(),
        launcher=core.guardian_launcher(settings),
    )
    return at_failpoints(ports, "lcm"), await core.guard(settings, identity)
