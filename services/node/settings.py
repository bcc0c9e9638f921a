"""Settings of the node agent."""

from __future__ import annotations

import shlex
import sys
from typing import Literal

from pydantic import Field, field_validator

from services.core.domain.units import parse_bytes
from services.core.runtime.settings import Settings


class NodeSettings(Settings):
    node_name: str = Field(default="local", description="What this machine is called in placements.")
    node_cpus: float | None = Field(
        default=None,
        gt=0,
        description="CPUs that learners may ask for together, in cores. More than there are is allowed: they are what "
        "the scheduler counts. Default: those this process may use.",
    )
    node_memory: int | None = Field(
        default=None, gt=0, description="Memory that learners may ask for together, e.g. 16GB. Default: all there is."
    )
    node_gpus: int | None = Field(
        default=None,
        ge=0,
        description="GPU slots. Declaring more than there are gives fake ones, for trying gangs and quotas. Default: "
        "those the NVIDIA driver shows.",
    )
    node_isolation: Literal["auto", "process", "sandbox"] = Field(
        default="auto",
        description="How learners are kept apart. sandbox: bubblewrap; process: users of their own, as root; auto: the "
        "better one that works on this machine.",
    )
    node_cgroups: bool = Field(
        default=True,
        description="Whether memory, CPUs and processes are enforced by control groups, where they can be.",
    )
    node_pids: int = Field(
        default=4096, ge=64, description="Processes and threads that one learner may have, where control groups are."
    )
    node_uid_first: int = Field(
        default=70_000, ge=1000, description="As root, each job runs under a user id of its own, from this one on."
    )
    node_uid_count: int = Field(default=10_000, ge=1, description="How many user ids there are for jobs.")
    node_port_first: int = Field(
        default=20_000,
        ge=1024,
        le=65_535,
        description="Learners of one job meet at ports from this one on; below those that the kernel gives to "
        "outgoing connections, so that none is taken between being picked and being used.",
    )
    node_port_count: int = Field(default=10_000, ge=1, description="How many ports there are for learners.")
    node_helper_command: str = Field(
        default=f"{shlex.quote(sys.executable)} -m services.helper",
        description="What runs beside each learner; the learner's folder is added. For tests.",
    )
    node_helper_backoff_s: float = Field(
        default=0.1, gt=0, description="Wait before a dead helper is started again, doubled up to 5 s, in seconds."
    )

    node_helper_silence_s: float = Field(
        default=2, ge=0,
        description="A helper that lives but has done nothing for so long is killed and started again, in seconds; 0:"
        " never.",
    )  # fmt: skip

    @field_validator("node_memory", mode="before")
    @classmethod
    def _bytes(cls, value: object) -> int | None:
        return None if value is None else parse_bytes(value)
