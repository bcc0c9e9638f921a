"""Settings of the life-cycle manager."""

from __future__ import annotations

from pydantic import Field

from services.core.settings import Settings


class LcmSettings(Settings):
    queue_scan: int = Field(
        default=5_000, gt=0, description="How many waiting jobs one round looks at: it bounds the round's time."
    )
    history_batch: int = Field(default=500, gt=0, description="How many jobs' history one sweep copies.")
