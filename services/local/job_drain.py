"""Halts the running jobs before the platform stops, and queues them again after its next start.

Only job documents are changed; the Guardians halt the jobs as for a user. A job that was halted so has ``platform`` as
the actor of its desired state: that is all that the next start needs, also after a crash in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from services.core.bootstrap import wiring
from services.core.domain.errors import IllegalTransition, InvalidSpec
from services.core.domain.job import PLATFORM, Job, set_desired
from services.core.domain.spec import parse_spec
from services.core.domain.status import Desired
from services.core.ports.job_store import JobQuery, JobStore
from services.core.runtime.settings import Settings
from services.core.use_cases.jobs import all_jobs, update

_STORING_S: Final = 60.0
"""Time for storing results and checkpoints after the longest ``grace``."""
_POLL_S: Final = 0.1
_HALTING_POLL_S: Final = 0.5
"""Each turn reads the documents of all jobs that hold hardware."""
Report = Callable[[str], None]


async def halt_jobs(settings: Settings, report: Report) -> tuple[Sequence[str], Sequence[str]]:
    """Halts every job that holds hardware, and returns when none does, or after the longest grace and a minute.

    Returns the ids of the jobs that were halted, and of those that still held hardware at the end. The caller holds
    admission (``admission_held``). Raises WeftError where the job store does not answer.
    """
    clock = wiring.clock()
    store = await wiring.job_store(settings)
    halted: set[str] = set()
    end_s = clock.boottime() + _STORING_S
    try:
        while True:
            holding = [job async for job in all_jobs(store, JobQuery(holding=True, deleted=True))]
            for job in holding:
                if job.id not in halted and await _changed(store, job, Desired.HALT, clock.now_ms()):
                    halted.add(job.id)
                    end_s = max(end_s, clock.boottime() + _grace_s(job) + _STORING_S)
                    report(f"halting {job.spec.get('name', job.id)} ({job.id}): {_grace_s(job):g} s to checkpoint")
            if not holding or clock.boottime() >= end_s:
                return sorted(halted), [job.id for job in holding]
            await asyncio.sleep(_POLL_S)
    finally:
        await store.close()


async def queue_again(settings: Settings, report: Report) -> Sequence[str]:
    """Queues the jobs again that ``halt_jobs`` halted. Returns their ids. Raises WeftError as ``halt_jobs`` does.

    A stop may end before all of its jobs are halted: they took too long, or the machine died. The Guardians halt them
    now, and this waits for it, as long as ``halt_jobs`` does.
    """
    clock = wiring.clock()
    store = await wiring.job_store(settings)
    again: list[str] = []
    end_s: float | None = None
    try:
        while True:
            # Read first: a job that is released after this is among the stopped ones.
            holding = [job async for job in all_jobs(store, JobQuery(holding=True, deleted=True))]
            halting = [job for job in holding if job.halted_by_platform]
            stopped = [job async for job in all_jobs(store, JobQuery(stopped=True))]
            again += [job.id for job in stopped if await _changed(store, job, Desired.RUN, clock.now_ms())]
            if not halting:
                return again
            names = ", ".join(job.id for job in halting[:5])
            if end_s is None:
                end_s = clock.boottime() + max(map(_grace_s, halting)) + _STORING_S
                report(f"waiting for jobs that the last stop was halting ({names})")
            if clock.boottime() >= end_s:
                up = settings.installation.command("up")
                report(f"jobs are still being halted ({names}); `{up}` once more queues them again")
                return again
            await asyncio.sleep(_HALTING_POLL_S)
    finally:
        await store.close()


async def _changed(store: JobStore, job: Job, desired: Desired, now: int) -> bool:
    """Sets the desired state unless a user has set another one. Returns whether the platform desires it now."""

    def change(current: Job) -> Job:
        if current.deleted is not None or not (current.desired is Desired.RUN or current.halted_by_platform):
            return current
        return set_desired(current, desired, actor=PLATFORM, now=now)

    try:
        changed = await update(store, job.id, None, change)
    except IllegalTransition:  # it has just ended, or still gives back its hardware
        return False
    return changed.desired is desired and changed.desired_by == PLATFORM


def _grace_s(job: Job) -> float:
    try:
        return parse_spec(job.spec).grace / 1000
    except InvalidSpec:
        return 0.0
