"""Keeps a Guardian of its own for each job that holds hardware (``guardian.launcher: job``).

Level-based: each round compares the jobs that hold hardware with the Guardians that were launched. Only the leading
dispatcher's process acts. Two Guardians of one job do no harm: the claim in its document decides.
"""

from __future__ import annotations

from typing import Final

import structlog

from services.core.domain.errors import StaleFence, Unavailable, WeftError
from services.core.ports.guardian_launcher import GuardianLauncher
from services.core.ports.job_store import JobQuery, JobStore
from services.core.use_cases.jobs import all_jobs
from services.lcm.instrumentation import Instrumentation

_LAUNCHED: Final = "launched"
_REPLACED: Final = "replaced"
_REMOVED: Final = "removed"
_EVENTS: Final = {
    _LAUNCHED: "guardian.launched",
    _REPLACED: "guardian.replaced",
    _REMOVED: "guardian.removed",
}
log = structlog.get_logger()


class GuardianJobs:
    def __init__(self, jobs: JobStore, launcher: GuardianLauncher, instrumentation: Instrumentation) -> None:
        self._jobs, self._launcher, self._instrumentation = jobs, launcher, instrumentation
        self._unneeded: frozenset[str] = frozenset()
        """Guardians that ran, and whose jobs held nothing, at the last round: they end by themselves."""

    async def reconcile(self, term: int) -> None:
        """Launches what is missing, and removes what has ended or is not needed in two rounds.

        Raises StaleFence if the dispatcher of this term does not lead any more, Unavailable if a service is away.
        """
        launched = await self._launcher.launched()
        # Read after the launched ones: a Guardian whose job is not among these is not needed.
        holding = {job.id async for job in all_jobs(self._jobs, JobQuery(holding=True, deleted=True))}
        if (await self._jobs.dispatcher()).term != term:
            raise StaleFence("a newer dispatcher leads")
        for job_id in sorted(holding - launched.keys()):
            await self._act(_LAUNCHED, job_id)
        for job_id, runs in sorted(launched.items()):
            if not runs and job_id in holding:  # it ended before its job was admitted again, or crashed too often
                await self._act(_REPLACED, job_id)
            elif job_id not in holding and (not runs or job_id in self._unneeded):
                await self._act(_REMOVED, job_id)
        self._unneeded = frozenset(job_id for job_id, runs in launched.items() if runs and job_id not in holding)

    async def _act(self, action: str, job_id: str) -> None:
        """A Guardian is replaced by its removal: the next round launches another one."""
        try:
            await (self._launcher.launch(job_id) if action == _LAUNCHED else self._launcher.remove(job_id))
        except Unavailable:
            raise
        except WeftError as error:  # one bad job must not stop the others
            log.warning("guardian.not_launched", job=job_id, action=action, why=str(error))
            return
        self._instrumentation.guardians.labels(action).inc()
        log.info(_EVENTS[action], job=job_id)
