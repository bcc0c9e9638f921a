"""Jobs whose lines and points cannot be read: in quarantine until their files are mended, or their job is deleted."""

from __future__ import annotations

from typing import Final

from services.core.ports.clock import Clock
from services.core.ports.metric_store import MetricStore
from services.core.runtime.quarantine import METRICS, Quarantine

_EVERY_S: Final = 2.0
_LOOKED_AT: Final = 1
"""Each look at a damaged job reads all of it: one in a turn, one after the other."""


async def watch_damage(store: MetricStore, quarantine: Quarantine, clock: Clock) -> None:
    """For ever."""
    while True:
        await look_at_damage(store, quarantine)
        await clock.sleep(_EVERY_S)


async def look_at_damage(store: MetricStore, quarantine: Quarantine) -> None:
    """Once. What is known to be damaged longest is looked at again."""
    for job_id in [one for one in quarantine.places(METRICS) if one in store.damaged()][:_LOOKED_AT]:
        await store.recheck(job_id)
        quarantine.move_to_end(METRICS, job_id)
    found = store.damaged()
    for job_id, why in found.items():
        quarantine.hold(METRICS, job_id, why, job=job_id)
    quarantine.keep_only(METRICS, found.keys())
