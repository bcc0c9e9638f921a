"""The questions that every kind of cluster answers, from outside of the learners."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from weft._job import Job

VICTIM: Final = "acme"
ATTACKER: Final = "evil"
PLATFORM_FOLDERS: Final = (
    "run",
    "secrets",
    "logs",
    "objects",
    "metrics",
    "jobs.sqlite",
    "records.sqlite",
    "uploads",
    "etcd",
)
"""Files and folders of the platform's home that no learner may read or change."""


class RunningProcess(Protocol):
    """Two are equal if they are the same process."""

    @property
    def pid(self) -> int: ...


class Learners(Protocol):
    """The cluster of learners."""

    def command(self, module: str, function: str) -> str:
        """The job's command that runs an attack of ``tests.hostile.attacks``. The job's code has its modules."""
        ...

    def components(self) -> Mapping[str, RunningProcess | None]:
        """The servers that no trick may end: services of the platform and of the cluster. None: it has ended."""
        ...

    def intel(self, guard: Job) -> dict[str, Any]:
        """What an attacker could find out at best, for ``tests.hostile.attacks.ground.intel``.

        ``addresses`` of servers by name, ``front`` (``host:port`` of what answers a learner), ``ports``, ``ports_of``
        and ``open_ports`` of the platform, ``own_network`` and ``own_processes`` (true where a learner shares loopback
        and process ids with nothing of others), ``sockets``, ``pids``, and ``commands`` of these processes.
        """
        ...

    def inner_urls(self) -> list[str]:
        """URLs of the cluster's own servers: no data of a job's."""
        ...

    def private(self, guard: Job) -> list[str]:
        """Paths that an attacker may neither read nor change, beside those of the platform's home."""
        ...

    def secrets(self, guard: Job) -> dict[str, str]:
        """Name -> a text of the cluster's that no output of an attacker may contain."""
        ...

    def identity(self, guard: Job) -> object:
        """Equal as long as the victim's learner is the same, undisturbed."""
        ...

    def unchanged(self, guard: Job) -> list[Path]:
        """Folders of the victim's running learner that stay as they are."""
        ...

    def job_folder(self, job: Job) -> Path | None:
        """JOB_STATE_DIR of the job's first learner as this process sees it; None: there is none yet."""
        ...

    def damage(self, job: Job) -> Iterator[str]:
        """What a running learner has written or removed beside the part that is its own."""
        ...

    def leftovers(self, guard: Job, jobs: Collection[str]) -> Iterator[str]:
        """Everything of a learner's, other than the guard's. ``jobs``: ids of jobs that have ended."""
        ...

    def violations(self) -> list[str]:
        """What was seen since the start and must never be, e.g. two attempts of a job at one moment."""
        ...
