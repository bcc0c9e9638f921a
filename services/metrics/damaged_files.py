"""Puts jobs with unreadable metric files into quarantine until the files are repaired or the job is deleted."""

from __future__ import annotations

from typing import Final

from services.core.ports.clock import Clock
from services.core.ports.metric_store import MetricStore
from services.core.runtime.quarantine import METRICS, Quarantine

_EVERY_S: Final = 2.0
_CHECKED_AT_ONCE: Final = 1
"""A check reads all files of a job, so damaged jobs are checked in turn."""


async def watch_damaged_files(store: MetricStore, quarantine: Quarantine, clock: Clock) -> None:
    """Checks every 2 seconds until cancelled."""
    while True:
        await check_damaged_files(store, quarantine)
        await clock.sleep(_EVERY_S)


async def check_damaged_files(store: MetricStore, quarantine: Quarantine) -> None:
    """Checks the longest-waiting damaged job again and brings the quarantine up to date."""
    for job_id in [place for place in quarantine.places(METRICS) if place in store.damaged()][:_CHECKED_AT_ONCE]:
        await store.recheck(job_id)
        quarantine.move_to_end(METRICS, job_id)
    damaged = store.damaged()
    for job_id, why in damaged.items():
        quarantine.hold(METRICS, job_id, why, job=job_id)
    quarantine.keep_only(METRICS, damaged.keys())
