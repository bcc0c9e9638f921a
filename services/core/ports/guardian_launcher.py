"""Processes that guard one job each, in the place of a pool (docs/adr/0025-a-kubernetes-job-per-guardian.md).

A launcher only starts and removes them. Which of several Guardians acts is decided by the claim in the job's document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class GuardianLauncher(Protocol):
    """Every method may be called again, and raises Unavailable while the launcher's own service is away."""

    async def launched(self) -> Mapping[str, bool]:
        """Returns job id -> True while its Guardian may run, or be started again; False once it has ended for good."""
        ...

    async def launch(self, job_id: str) -> None:
        """Starts a Guardian of the job, and again whenever it crashes. No effect if there is one, also an ended one."""
        ...

    async def remove(self, job_id: str) -> None:
        """Ends the Guardian of the job, and removes it. No effect if there is none."""
        ...

    async def close(self) -> None:
        """Closes connections. Guardians stay."""
        ...
