"""Settings of the local supervisor."""

from __future__ import annotations

from pydantic import Field

from services.core.runtime.settings import Settings


class LocalSettings(Settings):
    port: int = Field(default=0, ge=0, le=65535, description="Of the API; 0: the last one used, else any free one.")
    host: str = Field(default="127.0.0.1", description="Address the API (HTTP) listens on; the rest is on loopback.")
    api_grpc_port: int = Field(default=0, ge=0, le=65535, description="Of the API's gRPC; 0: as with `port`.")
    api_grpc_host: str = Field(default="127.0.0.1", description="Address the API's gRPC listens on.")
    restart_delay_s: float = Field(default=0.05, gt=0, description="Before a dead service is started again; doubles.")
    restart_delay_max_s: float = Field(default=5, gt=0, description="The longest such delay.")
    silence_s: float = Field(
        default=2,
        ge=0,
        description="A service that lives but has done nothing for so long (it was stopped, or hangs) is killed and"
        " started again, in seconds; 0: never.",
    )
    drain_s: float = Field(default=10, gt=0, description="How long a service may take to stop before it is killed.")
