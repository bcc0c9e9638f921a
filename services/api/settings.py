"""Settings of the api."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from services.core.runtime.settings import Settings

MIB: Final = 2**20


class ApiSettings(Settings):
    max_code_bytes: int = Field(default=512 * MIB, gt=0, description="Largest code archive that is accepted, in bytes.")
    max_spec_bytes: int = Field(default=256 * 1024, gt=0, description="Longest text of a job spec, in bytes.")
    key_cache_s: float = Field(
        default=2.0,
        ge=0,
        description="How long an API key is cached, in seconds: a revoked key may work for this long.",
    )
    follow_poll_s: float = Field(
        default=0.03, gt=0,
        description="Interval at which the api reads which jobs have changed while any job is followed, in seconds. It"
        " is one small read, however many followers there are.",
    )  # fmt: skip
    keepalive_s: float = Field(
        default=15.0,
        gt=0,
        description="Interval of comments on a silent live stream, in seconds; proxies cut silent ones after 30 to 60.",
    )
    delete_wait_s: float = Field(
        default=10.0, ge=0, description="How long `DELETE ?kill=true` waits for the job's end, in seconds."
    )
