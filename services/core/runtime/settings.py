"""The settings that all services share. Each service extends them; every field's description has its unit and reason.

They are loaded from the environment (``WEFT_<FIELD>``), and from the file that ``WEFT_SETTINGS_FILE`` names: lines
``WEFT_<FIELD>=value``, for values with a password. The environment precedes the file. scripts/settings.py generates
docs/settings.md from the fields.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, DotEnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from services.core.runtime.address import TlsFiles
from services.core.runtime.checked_settings import CheckedSettings
from services.core.runtime.home import Home, default_home

SETTINGS_FILE: Final = "WEFT_SETTINGS_FILE"
"""In the environment: the path of a file with settings."""


def _longer_than_idle(value: float) -> float:
    if 0 < value < 2:
        raise ValueError("must be 0, or at least 2: an idle process wakes up once a second")
    return value


Silence = Annotated[float, Field(ge=0), AfterValidator(_longer_than_idle)]
"""Seconds after which a process that has done nothing counts as hung; 0: never."""


class Settings(CheckedSettings):
    """Settings of every service."""

    model_config = SettingsConfigDict(env_prefix="WEFT_", frozen=True, extra="ignore")

    home: Path = Field(default_factory=default_home, description="The installation's folder.")
    job_store: str = Field(
        default="sqlite",
        repr=False,  # a URI may contain a password
        description="Store of jobs and records: sqlite (files in the home), or mongodb://user:password@host/database.",
    )
    master_key_file: Path | None = Field(
        default=None,
        description="File of the keys that encrypt the secrets in the record store. Default: secrets/master-key in the "
        "home.",
    )
    object_store: str = Field(
        default="folder",
        description="Store of code, results, logs and checkpoints: folder (objects/ in the home), or "
        "s3://bucket[/prefix].",
    )
    s3_endpoint: str = Field(
        default="", description="URL of the S3 server, http(s)://host[:port]. Default: Amazon's of the region."
    )
    s3_region: str = Field(default="us-east-1", description="Region of the bucket.")
    s3_access_key: str = Field(default="", repr=False, description="Access key id for the S3 server.")
    s3_secret_key: str = Field(
        default="",
        repr=False,
        description="Secret access key for the S3 server. Never logged, and never given to helpers or learners.",
    )
    s3_session_token: str = Field(
        default="", repr=False, description="Session token for the S3 server, with temporary credentials."
    )
    s3_credentials_file: Path | None = Field(
        default=None,
        description="File with access key, secret key and session token, in the format of Amazon's tools (section "
        "[default]). Replaces the three settings.",
    )
    s3_signing_credentials_file: Path | None = Field(
        default=None,
        description="The same, for the credentials with which helpers' URLs are signed; rights to get and put objects "
        "suffice. Default: the credentials of the store.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that is logged. Logs are JSON, one object per line."
    )
    cluster: str = Field(
        default="local",
        description="Cluster on which learners run: local (the node agent of this machine), or kubernetes (pods; see "
        "the settings WEFT_KUBERNETES_...).",
    )
    hints: Literal["send", "drop"] = Field(
        default="send", description="'drop' loses every hint: all must still work, only slower. For tests."
    )
    broker_url: str = Field(
        default="filesystem://",
        repr=False,  # may hold a password
        description="Broker of the api's hints: amqp://user:password@host/vhost (RabbitMQ), redis://:password@host/db "
        "or, on one machine, filesystem:// (a folder in the home), which carries only hints that got "
        "no answer to a direct call. A vhost or db must not be shared by two installations.",
    )
    sweep_s: float = Field(
        default=1.0,
        gt=0,
        description="Seconds between two sweeps, in which each service checks all its objects without a hint.",
    )
    lease_ttl_s: float = Field(
        default=3.0,
        ge=2,
        description="Seconds without a keep-alive after which a service counts as dead. etcd's minimum is 2.",
    )

    tls_authority_file: Path | None = Field(
        default=None,
        description="PEM file of the authority whose certificates other services show. Needed for addresses of the "
        "form tls:host:port. Default with `weft up`: the installation's own authority.",
    )
    tls_certificate_file: Path | None = Field(
        default=None,
        description="PEM file of this service's certificate, which it shows as server and as client. Default with "
        "`weft up`: made by the installation's authority.",
    )
    tls_key_file: Path | None = Field(
        default=None, description="PEM file of the private key of `tls_certificate_file`, unencrypted, of mode 600."
    )

    disk_free_bytes: int = Field(
        default=2**30,
        ge=0,
        description="No job is admitted while a disk of the job store, the object store or the nodes has fewer free "
        "bytes than this and than `disk_free_percent`: running jobs need the rest to end well. 0: never stops.",
    )
    disk_free_percent: float = Field(
        default=5.0, ge=0, le=100, description="The same as a share of the disk, in percent; the lower limit counts."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments precede the environment, which precedes the file. Raises OSError for a file that is unreadable."""
        del dotenv_settings, file_secret_settings
        path = os.environ.get(SETTINGS_FILE)
        if not path:
            return init_settings, env_settings
        with open(path, "rb"):  # noqa: PTH123 - the library skips a file that is missing
            pass
        return init_settings, env_settings, DotEnvSettingsSource(settings_cls, env_file=path)

    @property
    def installation(self) -> Home:
        """The folder layout and the addresses below ``home``."""
        return Home(self.home, self.tls_files)

    @property
    def tls_files(self) -> TlsFiles | None:
        """The files for mutual TLS; None unless all three are set."""
        files = (self.tls_authority_file, self.tls_certificate_file, self.tls_key_file)
        return TlsFiles(*files) if all(files) else None  # type: ignore[arg-type]
