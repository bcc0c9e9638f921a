"""Settings of the node agent."""

from __future__ import annotations

import shlex
import sys
from typing import Literal

from pydantic import Field, field_validator

from services.core.domain.units import parse_bytes
from services.core.runtime.settings import Settings, Silence


class NodeSettings(Settings):
    node_name: str = Field(default="local", description="The name of this machine in placements.")
    node_cpus: float | None = Field(
        default=None,
        gt=0,
        description="CPUs that all learners together may request, in cores. May exceed the real number: the scheduler "
        "only counts them. Default: the CPUs that this process may use.",
    )
    node_memory: int | None = Field(
        default=None,
        gt=0,
        description="Memory that all learners together may request, in bytes or e.g. 16GB. Default: all of the "
        "machine's, within the limits of this process's control groups.",
    )
    node_gpus: int | None = Field(
        default=None,
        ge=0,
        description="GPU slots. More than there are are slots without a device, for trying gangs and quotas. Default: "
        "the GPUs that the NVIDIA driver shows.",
    )
    node_isolation: Literal["auto", "process", "sandbox"] = Field(
        default="auto",
        description="How learners are isolated. sandbox: by bubblewrap; process: by a user per job, if the agent runs "
        "as root; auto: sandbox if it works on this machine, else process. Without root, process separates nothing: it "
        "is called trusted, and serves one tenant.",
    )
    node_seccomp: bool = Field(
        default=True,
        description="Filter the system calls of learners, as container runtimes do by default.",
    )
    node_limits: Literal["auto", "required"] = Field(
        default="auto",
        description="required: the node agent refuses to start where learners are not in isolation sandbox, or where "
        "memory and processes are not limited by control groups. auto: it runs, and `weft status` shows what "
        "is missing.",
    )
    node_cgroups: bool = Field(
        default=True,
        description="Enforce memory, CPUs and processes of learners by control groups, if they can be made.",
    )
    node_pids: int = Field(
        default=4096, ge=64, description="Limit of processes and threads of one learner, if control groups can be made."
    )
    node_helper_memory: int = Field(
        default=4 * 2**30,
        gt=0,
        description="Memory that one helper and the environment that it builds may use, in bytes or e.g. 4GB, if "
        "control groups can be made. A helper that is ended for it is started again.",
    )
    node_helper_cpus: float = Field(
        default=1, gt=0, description="Weight of one helper and what it builds beside learners, in CPUs."
    )
    node_helper_pids: int = Field(
        default=1024, ge=64, description="Limit of processes and threads of one helper and what it builds."
    )
    node_uid_first: int = Field(
        default=70_000, ge=1000, description="If the agent runs as root, each job gets a user id: the first of them."
    )
    node_uid_count: int = Field(default=10_000, ge=1, description="The number of user ids for jobs.")
    node_disk: int | None = Field(
        default=None,
        gt=0,
        description="Bytes that one learner may have on the disk, or e.g. 100GB: its results, checkpoints, logs and "
        "temporary files. A learner that exceeds them is ended with reason DiskExceeded. It is measured every "
        "WEFT_NODE_DISK_CHECK_S, so more may be written meanwhile. Default: half of the file system that holds "
        "WEFT_HOME.",
    )
    node_files: int = Field(
        default=2_000_000,
        gt=0,
        description="Files and folders that one learner may have, as WEFT_NODE_DISK. Whatever it is, one whose "
        "processes together hold more than 1,048,576 descriptors of open files is ended, too.",
    )
    node_tenant_disk: int | None = Field(
        default=None,
        gt=0,
        description="Bytes that the running learners of one tenant on this machine may have on the disk together, or "
        "e.g. 200GB. Beyond it the tenant's largest learner is ended with reason DiskExceeded. Default: half of the "
        "file system that holds WEFT_HOME, or WEFT_NODE_DISK if that is more.",
    )
    node_disk_reserve: int | None = Field(
        default=None,
        ge=0,
        description="Bytes of the learners' file system that stay free for the platform, or e.g. 2GB. When less is "
        "free, the learners that grew most are ended with reason DiskExceeded. Default: half of the free space at "
        "which no job is admitted (WEFT_DISK_FREE_BYTES, WEFT_DISK_FREE_PERCENT). 0: no learner is ended for it.",
    )
    node_disk_check_s: float = Field(
        default=5,
        gt=0,
        description="Pause between two rounds that measure what learners have written, in seconds. Longer if a round "
        "takes long: measuring takes a twentieth of the time at most. While the disk hardly fills, one round in six is "
        "made.",
    )
    node_cache: int | None = Field(
        default=None,
        gt=0,
        description="Bytes that the caches of this machine may have on the disk, or e.g. 200GB: environments, "
        "downloaded packages and data. What was not used for longest is removed, nothing that is in use. Default: a "
        "quarter of the file system that holds WEFT_HOME.",
    )
    node_cache_check_s: float = Field(
        default=60, gt=0, description="Pause between two checks of the size of the caches, in seconds."
    )
    node_remove_s: float = Field(
        default=30,
        gt=0,
        description="Time to remove the folder of an ended attempt, in seconds. A folder that is left is kept in "
        "quarantine (`weft status`), its hardware is given back, and its removal is tried again later.",
    )
    node_port_first: int = Field(
        default=20_000,
        ge=1024,
        le=65_535,
        description="The first port for learners that connect to each other. The range should be below the kernel's "
        "ports for outgoing connections, which may be taken between reservation and use.",
    )
    node_port_count: int = Field(default=10_000, ge=1, description="The number of ports for learners.")
    node_helper_command: str = Field(
        default=f"{shlex.quote(sys.executable)} -m services.helper",
        description="The helper's command, to which the learner's folder is appended. For tests.",
    )
    node_helper_backoff_s: float = Field(
        default=0.1,
        gt=0,
        description="Longest pause before a helper that has died is restarted, in seconds. Doubles up to 5 s.",
    )
    node_helper_silence_s: Silence = Field(
        default=2,
        description="A helper that lives but has done nothing for so long is killed and restarted, in seconds; 0: "
        "never. Else at least 2: an idle helper wakes up once a second.",
    )

    @field_validator(
        "node_memory",
        "node_disk",
        "node_tenant_disk",
        "node_disk_reserve",
        "node_cache",
        "node_helper_memory",
        mode="before",
    )
    @classmethod
    def _bytes(cls, value: object) -> int | None:
        return None if value is None else parse_bytes(value)
