"""What an operator can set of the api."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from services.core.runtime.settings import Settings

MIB: Final = 2**20


class ApiSettings(Settings):
    max_code_bytes: int = Field(default=512 * MIB, gt=0, description="Largest code archive that is taken in, in bytes.")
    max_spec_bytes: int = Field(default=256 * 1024, gt=0, description="Longest text of a job spec, in bytes.")
    key_cache_s: float = Field(
        default=2.0,
        ge=0,
        description="For so many seconds a key is not looked up again: how late a revocation may bite.",
    )
    follow_poll_s: float = Field(
        default=0.1, gt=0, description="How often a job that somebody follows is looked at, in seconds."
    )
    keepalive_s: float = Field(
        default=15.0,
        gt=0,
        description="A silent live stream gets a comment so often, in seconds; proxies cut at 30 to 60.",
    )
    delete_wait_s: float = Field(
        default=10.0, ge=0, description="How long `DELETE ?kill=true` waits for the job to have ended, in seconds."
    )
