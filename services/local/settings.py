"""Settings of the local supervisor."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from services.core.runtime.settings import Settings, Silence


class LocalSettings(Settings):
    port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port of the REST API; 0: the previous one if it is free, else a free one.",
    )
    host: str = Field(default="127.0.0.1", description="Address that the REST API listens on.")
    api_grpc_port: int = Field(default=0, ge=0, le=65535, description="Port of the gRPC API; 0: as for `port`.")
    api_grpc_host: str = Field(default="127.0.0.1", description="Address that the gRPC API listens on.")
    transport: Literal["sockets", "tls"] = Field(
        default="sockets",
        description="How the services and etcd reach one another: sockets in a private folder, or tls: ports of "
        "loopback that demand a certificate. Takes effect when nothing of the platform runs.",
    )
    operations_transport: Literal["", "sockets", "tls"] = Field(
        default="",
        description="How the operations addresses (health, readiness, metrics) are reached, e.g. tls for a Prometheus, "
        "which cannot read sockets. Default: as `transport`. Takes effect when nothing of the platform runs.",
    )
    advertise: str = Field(
        default="",
        description="With cluster kubernetes: the host name or address by which pods reach this machine. Their helpers "
        "connect to the metrics service there, which shows a certificate for this name.",
    )
    learners_host: str = Field(
        default="0.0.0.0",  # noqa: S104 - pods are on other machines; TLS and learners' tokens protect the port
        description="With cluster kubernetes: the address that the metrics service listens on for pods.",
    )
    learners_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="With cluster kubernetes: the port for pods; 0: the previous one if it is free, else a free one.",
    )
    restart_delay_s: float = Field(
        default=0.05,
        gt=0,
        description="Pause before an ended service is restarted, in seconds; doubles with each early end.",
    )
    restart_delay_max_s: float = Field(default=5, gt=0, description="The longest pause before a restart, in seconds.")
    silence_s: Silence = Field(
        default=2,
        description="A service that hangs (stopped, or deadlocked) for this many seconds is killed and restarted;"
        " 0: never. Else at least 2: an idle service wakes up once a second.",
    )
    log_bytes: int = Field(
        default=64 * 2**20,
        gt=0,
        description="A service's log of more bytes is rotated: copied to `<name>.log.1`, and emptied.",
    )
    log_copies: int = Field(default=3, ge=0, description="Number of rotated copies that are kept of each log.")
    drain_s: float = Field(
        default=10, gt=0, description="Time that a service has to stop before it is killed, in seconds."
    )
