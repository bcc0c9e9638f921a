"""Settings of the life-cycle manager."""

from __future__ import annotations

from pydantic import Field

from services.core.runtime.settings import Settings


class LcmSettings(Settings):
    queue_scan: int = Field(
        default=5_000, gt=0,
        description="How many waiting jobs are read at a time. A round reads on until one of them has to wait for"
        " hardware: it bounds the round's time, and nobody behind it could be admitted.",
    )  # fmt: skip
    history_batch: int = Field(default=500, gt=0, description="How many jobs' history one sweep copies.")
    collect_s: float = Field(
        default=10, gt=0,
        description="How often leftovers of jobs that are over are looked for, in seconds. What two looks in a row"
        " have seen is removed.",
    )  # fmt: skip
    quarantine_s: float = Field(
        default=30, gt=0,
        description="How long after all job documents were looked through for unreadable ones it is done again, in"
        " seconds. Those that concern hardware are found at once.",
    )  # fmt: skip
