"""Settings of the metrics service."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from services.core.domain.errors import InvalidRequest
from services.core.domain.shards import MOST_SHARDS, Shards
from services.core.runtime.address import TLS, Address, TlsFiles
from services.core.runtime.settings import Settings


class MetricsSettings(Settings):
    metrics_learners_listen: str = Field(
        default="",
        description="host:port at which the helpers of learners in pods reach this service, with TLS: it shows the "
        "certificate of `metrics_learners_certificate_file`, they show their learner's token. Default: not served.",
    )
    metrics_learners_certificate_file: Path | None = Field(
        default=None,
        description="PEM file of the certificate for `metrics_learners_listen`. Its name is that by which pods reach "
        "the service.",
    )
    metrics_learners_key_file: Path | None = Field(
        default=None, description="PEM file of the private key of `metrics_learners_certificate_file`, of mode 600."
    )
    metrics_open_jobs: int = Field(
        default=512,
        gt=0,
        description="Number of jobs with open files. Each takes six file descriptors and up to 2 MiB of cache.",
    )
    metrics_search_s: float = Field(
        default=10.0, gt=0, description="Time limit of a query that searches logs, in seconds."
    )
    metrics_job_log_bytes: int = Field(
        default=10 * 2**30,
        gt=0,
        description="Most bytes of log lines that are stored of one job. Later lines are left out, counted, and in the "
        "job's stored files only.",
    )
    metrics_job_points: int = Field(
        default=50_000_000, gt=0, description="Most metric points of one job; each takes about 60 bytes."
    )
    metrics_job_series: int = Field(
        default=10_000, gt=0, description="Most curves of one job: attempts x ranks x metric names x labels."
    )
    metrics_job_sources: int = Field(
        default=100_000,
        gt=0,
        description="Most files of learners that lines and points of one job come from. A truncated file counts again.",
    )
    metrics_keep_alive_s: float = Field(
        default=10.0,
        gt=0,
        description="Longest silence of a stream to a follower, in seconds; then an empty page is sent.",
    )
    metrics_follow_pause_s: float = Field(
        default=0.02,
        ge=0,
        description="Pause between two pages of a follower, in seconds; entries stored meanwhile come in one page.",
    )
    metrics_gather_s: float = Field(
        default=2.0,
        ge=0,
        le=5,
        description="How long helpers may gather lines of a job without followers before they send them, in seconds. "
        "Each request costs the learner's machine about two milliseconds.",
    )
    metrics_late_s: float = Field(
        default=5.0,
        ge=0,
        description="Seconds after the declared end of a job or an attempt in which its learners may still append.",
    )
    metrics_drain_s: float = Field(
        default=5.0, gt=0, description="Time that running calls have to end when the service stops, in seconds."
    )
    metrics_remember_s: float = Field(
        default=3600.0,
        gt=0,
        description="How long the last call and the progress of a silent job's learners are kept, in seconds.",
    )

    metrics_shards: int = Field(
        default=1,
        ge=1,
        le=MOST_SHARDS,
        description="Number of metrics services, of which each stores the jobs of one shard. All have the same value.",
    )
    metrics_shards_before: int | None = Field(
        default=None,
        ge=1,
        le=MOST_SHARDS,
        description="Number of shards before it was changed, until all jobs have moved. All have the same value.",
    )
    metrics_shard: int = Field(default=0, ge=0, lt=MOST_SHARDS, description="Number of this shard, from 0.")
    metrics_shard_addresses: str = Field(
        default="",
        description="Address of a shard, `tls:host:port`, with `{}` for its number. Needed with several shards.",
    )

    @property
    def shards(self) -> Shards:
        """The numbers of shards."""
        return Shards(self.metrics_shards, self.metrics_shards_before)

    def shard_address(self, shard: int) -> Address:
        """The address of another shard. Raises InvalidRequest if the setting has no place for its number."""
        if "{}" not in self.metrics_shard_addresses:
            raise InvalidRequest(
                "WEFT_METRICS_SHARDS above 1 needs WEFT_METRICS_SHARD_ADDRESSES, e.g. tls:weft-metrics-{}:7000"
            )
        return Address(self.metrics_shard_addresses.replace("{}", str(shard)), self.installation.tls)

    @property
    def learners_address(self) -> Address | None:
        """Where learners in pods are served; None: nowhere. Raises InvalidRequest without a certificate."""
        if not self.metrics_learners_listen:
            return None
        certificate, key = self.metrics_learners_certificate_file, self.metrics_learners_key_file
        if certificate is None or key is None:
            raise InvalidRequest(
                "WEFT_METRICS_LEARNERS_LISTEN needs WEFT_METRICS_LEARNERS_CERTIFICATE_FILE and "
                "WEFT_METRICS_LEARNERS_KEY_FILE"
            )
        # No client shows a certificate, so the authority of clients is not used.
        return Address(f"{TLS}{self.metrics_learners_listen}", TlsFiles(certificate, certificate, key))
