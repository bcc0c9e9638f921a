"""Settings that every service shares. Each service extends this with its own; every field says unit and reason.

Loaded from the environment (``WEFT_<FIELD>``). The page docs/settings.md is generated from these classes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.core.home import Home, default_home


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="WEFT_", frozen=True, extra="ignore")

    home: Path = Field(default_factory=default_home, description="The installation's folder.")
    job_store: str = Field(
        default="sqlite",
        repr=False,  # a URI may hold a password
        description="Where jobs and records live: sqlite (files in the home), or mongodb://user:password@host/database.",
    )
    master_key_file: Path | None = Field(
        default=None,
        description="The keys that wrap the secrets in the record store; by default secrets/master-key in the home.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least that is logged; logs are JSON, one object per line."
    )
    hints: Literal["celery", "drop"] = Field(
        default="celery", description="'drop' loses every hint on purpose: everything must still work, only slower."
    )
    broker_url: str = Field(
        default="filesystem://",
        description="Carries the hints: filesystem://, amqp://user:password@host or redis://host.",
    )
    sweep_s: float = Field(
        default=1.0, gt=0, description="How often each actor looks at everything without being told, in seconds."
    )
    lease_ttl_s: float = Field(
        default=3.0, ge=2, description="After so many seconds of silence a service counts as gone. etcd's minimum is 2."
    )

    @property
    def place(self) -> Home:
        return Home(self.home)
