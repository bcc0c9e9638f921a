"""Settings of the api."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import Field

from services.core.runtime.settings import Settings

MIB: Final = 2**20


class ApiSettings(Settings):
    max_code_bytes: int = Field(default=512 * MIB, gt=0, description="Largest code archive that is accepted, in bytes.")
    max_spec_bytes: int = Field(default=256 * 1024, gt=0, description="Longest text of a job spec, in bytes.")
    max_connections: int = Field(
        default=4096,
        gt=0,
        description="Most connections of REST, and of gRPC, at a time. Fewer if the process may not open so many files."
        " If all are taken, a new one takes the place of the oldest of the client that has most.",
    )
    max_client_connections: int = Field(
        default=512,
        gt=0,
        description="Most connections of one client to REST, and to gRPC, at a time; further ones are closed. A client "
        "is an address, or a block of 64 bits of IPv6; on this machine a user id. Raise it behind a proxy.",
    )
    headers_s: float = Field(
        default=20.0,
        gt=0,
        description="Seconds that a client has for the headers of a request. Then its connection is closed (408).",
    )
    body_idle_s: float = Field(
        default=60.0,
        gt=0,
        description="Seconds that a client may pause while it sends the body of a request, or a submission over gRPC. "
        "Then the request is answered 503 and its upload is removed: a client that vanished keeps no place.",
    )
    max_user_keys: int = Field(
        default=100,
        gt=0,
        description="Most API keys of one user that are valid or were made within the last day.",
    )
    max_tenant_secrets: int = Field(default=100, gt=0, description="Most secrets of one tenant.")
    max_uploads: int = Field(
        default=128, gt=0, description="Most uploads of code at a time, of all tenants. Further ones are answered 429."
    )
    max_tenant_uploads: int = Field(default=32, gt=0, description="Most uploads of code of one tenant at a time.")
    tenant_bytes: int = Field(
        default=2**40,
        ge=0,
        description="Most bytes that a tenant stores in the object store: code, results, logs, checkpoints. Beyond it "
        "submissions are refused (507). 0: no limit.",
    )
    tenant_count_s: float = Field(
        default=600.0,
        gt=0,
        description="A tenant's objects are counted again at a submission if the last count is so old, in seconds.",
    )
    tenant_searches: int = Field(default=2, gt=0, description="Most searches through logs of one tenant at a time.")
    tenant_search_s: float = Field(
        default=30.0,
        gt=0,
        description="Seconds that a tenant may search logs without a pause. Then searches are answered 429, and live "
        "streams that search wait.",
    )
    tenant_search_share: float = Field(
        default=0.25, gt=0, description="Seconds of search time that a tenant earns back in each second."
    )
    gpu_idle_s: float = Field(
        default=600.0,
        gt=0,
        description="GPUs of a learner that were not in use for so many seconds are shown as idle. Learners are "
        "measured every 5 to 30 seconds.",
    )
    gpu_idle_share: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Use below this share of a learner's GPUs is idle. Where GPUs are not measured: below this share "
        "of one CPU core.",
    )
    max_learners: int = Field(
        default=1_000,
        gt=0,
        description="Most learners of a job that is submitted: each takes a shim and a helper of about 30 MB.",
    )
    max_gang_bytes: int = Field(
        default=16 * MIB,
        gt=0,
        description="Most bytes of the commands and environment variables of all learners of a job: each "
        "learner gets them in a file of its own.",
    )
    key_cache_s: float = Field(
        default=2.0,
        ge=0,
        description="How long an API key is cached, in seconds: a revoked key may work for this long.",
    )
    session_s: float = Field(
        default=8 * 3600.0,
        gt=0,
        description="A browser's session ends after so many seconds without a request.",
    )
    session_max_s: float = Field(
        default=7 * 24 * 3600.0,
        gt=0,
        description="Longest life of a browser's session, in seconds.",
    )
    dashboard_hosts: str = Field(
        default="",
        description="Names under which browsers reach the dashboard, separated by commas: host or host:port. IP "
        "addresses, localhost and the host of the api's own address are always allowed. Other names are refused: DNS "
        "rebinding would let another site act as the dashboard.",
    )
    dashboard_prefix: str = Field(
        default="",
        description="Path under which a proxy serves the api, e.g. /weft. Not needed if the "
        "proxy sends X-Forwarded-Prefix.",
    )
    dashboard_files: Path | None = Field(
        default=None,
        description="Folder of the built dashboard. Default: the one that the platform's package has.",
    )
    follow_poll_s: float = Field(
        default=0.03,
        gt=0,
        description="Interval at which the api reads which jobs have changed while any job is followed, in seconds. It"
        " is one small read, however many followers there are.",
    )
    keepalive_s: float = Field(
        default=15.0,
        gt=0,
        description="Interval of comments on a silent live stream, in seconds; proxies cut silent ones after 30 to 60.",
    )
    delete_wait_s: float = Field(
        default=10.0, ge=0, description="How long `DELETE ?kill=true` waits for the job's end, in seconds."
    )
