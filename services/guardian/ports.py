"""The ports of the guardian service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from services.core.domain.sizes import Size
from services.core.domain.tokens import LearnerIdentity
from services.core.ports.clock import Clock
from services.core.ports.cluster import Cluster
from services.core.ports.hints import Hints
from services.core.ports.job_store import JobStore
from services.core.ports.status_store import StatusStore


class Summaries(Protocol):
    async def summary(self, job_id: str) -> Mapping[str, Any]:
        """The job's last metrics and counts, as its document stores them at the end. Raises Unavailable."""
        ...


@dataclass(frozen=True)
class GuardianPorts:
    jobs: JobStore
    status: StatusStore
    cluster: Cluster
    hints: Hints
    clock: Clock
    summaries: Summaries
    mint: Callable[[LearnerIdentity], str]
    """Makes a learner's token. Equal identities get equal tokens."""
    sizes: Mapping[str, Size]

    async def close(self) -> None:
        await self.hints.close()
        await self.cluster.close()
        await self.status.close()
        await self.jobs.close()
