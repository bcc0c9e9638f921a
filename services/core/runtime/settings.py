"""Settings that every service shares. Each service extends this with its own; every field says unit and reason.

Loaded from the environment (``WEFT_<FIELD>``). The page docs/settings.md is generated from these classes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.core.runtime.home import Home, default_home


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
    object_store: str = Field(
        default="folder",
        description="Where code, results, logs and checkpoints live: folder (objects/ in the home), or "
        "s3://bucket[/prefix].",
    )
    s3_endpoint: str = Field(
        default="", description="Address of the S3 server, http(s)://host[:port]. Default: Amazon's of the region."
    )
    s3_region: str = Field(default="us-east-1", description="The region that the bucket is in, and requests name.")
    s3_access_key: str = Field(default="", repr=False, description="Who the platform is at the S3 server.")
    s3_secret_key: str = Field(
        default="", repr=False, description="Its secret. Never logged, and never given to helpers or learners."
    )
    s3_session_token: str = Field(default="", repr=False, description="With credentials that are temporary.")
    s3_credentials_file: Path | None = Field(
        default=None,
        description="The three from a file instead, in the form of Amazon's tools (section [default]).",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least that is logged; logs are JSON, one object per line."
    )
    hints: Literal["send", "drop"] = Field(
        default="send", description="'drop' loses every hint on purpose: everything must still work, only slower."
    )
    broker_url: str = Field(
        default="filesystem://",
        repr=False,  # may hold a password
        description="Carries the api's hints: amqp://user:password@host/vhost (RabbitMQ), redis://:password@host/db "
        "or, on one machine, filesystem:// (a folder in the home), which carries only those whose service did not "
        "answer a direct call. A vhost or db belongs to one installation alone.",
    )
    sweep_s: float = Field(
        default=1.0, gt=0, description="How often each actor looks at everything without being told, in seconds."
    )
    lease_ttl_s: float = Field(
        default=3.0, ge=2, description="After so many seconds of silence a service counts as gone. etcd's minimum is 2."
    )

    @property
    def installation(self) -> Home:
        return Home(self.home)
