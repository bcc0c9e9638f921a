"""Settings of the metrics service."""

from __future__ import annotations

from pydantic import Field

from services.core.runtime.settings import Settings


class MetricsSettings(Settings):
    metrics_open_jobs: int = Field(
        default=512,
        gt=0,
        description="How many jobs' files are kept open. Each takes six file descriptors and up to 2 MiB of cache.",
    )
    metrics_search_s: float = Field(
        default=10.0, gt=0, description="A query that looks through logs for longer is ended, in seconds."
    )
    metrics_keep_alive_s: float = Field(
        default=10.0, gt=0, description="A follower hears something at least this often, in seconds."
    )
    metrics_follow_pause_s: float = Field(
        default=0.02,
        ge=0,
        description="A follower's pause between two pages, in seconds: what comes meanwhile is read at once.",
    )
    metrics_gather_s: float = Field(
        default=1.0,
        ge=0,
        le=5,
        description="How long helpers may gather lines of a job that nobody follows, in seconds. "
        "Each request costs the learner's machine some two milliseconds.",
    )
    metrics_drain_s: float = Field(
        default=5.0, gt=0, description="How long running calls may take to end when the service stops, in seconds."
    )
    metrics_remember_s: float = Field(
        default=3600.0,
        gt=0,
        description="How long a learner's last sign of life and progress are remembered, in seconds.",
    )
