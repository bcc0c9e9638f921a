"""Where learners run. Two adapters: ``local`` (the node agent of this machine) and, later, Kubernetes.

Every call that changes something carries the Guardian's ``term`` and the ``attempt``; the cluster remembers the highest
pair it has seen of a job and refuses lower ones with StaleFence. Every call may be repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from services.core.domain.learner import Exit
from services.core.domain.plan import AttemptPlan

ISOLATION_LABEL: Final = "weft.dev/isolation"
"""Label of a node: how its learners are isolated (process | sandbox)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What one node has for learners, not what is free of it: the dispatcher counts that from unreleased admissions."""

    name: str
    cpus: float
    memory: int
    """Bytes."""
    gpus: int
    gpu_type: str = ""
    ready: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerProcess:
    """What the cluster itself knows of a learner, whatever its helper says."""

    name: str
    attempt: int
    state: str
    """inert (provisioned, not let go) | waiting (helper at work, process not started) | running | exited."""
    run: int = 0
    pid: int | None = None
    started: int | None = None
    exit: Exit | None = None
    stored: bool = False
    """Its helper has stored everything and ended: known here too, for the status store may have forgotten it."""
    reason: str = ""
    """Why its helper gave up before the process ran; empty: it did not."""
    message: str = ""
    node: str = ""
    cpus: float = 0
    memory: int = 0
    """Bytes. What it holds of its node counts, whatever its job's document says, or does not say any more."""
    gpus: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All that exists of a job, of any attempt."""

    learners: Sequence[LearnerProcess]
    attempts: Sequence[int]
    """Attempts of which anything at all exists (folders, processes, objects)."""


class Cluster(Protocol):
    async def capacity(self) -> Sequence[Node]: ...

    def steps(self) -> Sequence[str]:
        """The names of the plan's steps, in order; the last one activates. Not a coroutine."""
        ...

    async def do(self, step: str, plan: AttemptPlan) -> None:
        """Carries out one step; done already is done. StaleFence; ResourceExhausted or InvalidRequest with the reason
        where the cluster says no.
        """
        ...

    async def observe(self, job_id: str) -> Observation: ...

    async def stop(self, job_id: str, *, attempt: int, term: int, generation: int, cause: str, grace_ms: int) -> None:
        """Writes the stop mark beside each learner, then SIGTERM to all, SIGKILL after ``grace_ms`` (0: at once).

        ``cause``: halt | kill | peer | deadline. After ``kill`` helpers store nothing. Returns once the marks are
        durable and the signals on their way, not when all have ended. A learner that had exited stays as it is; one
        that never started is ended without ever starting, with the mark. A stronger stop (less grace) overrides.
        """
        ...

    async def teardown(self, job_id: str, *, attempt: int, term: int) -> None:
        """Ends and removes everything of the attempt and of earlier ones; returns when it is really gone.

        Afterwards ``do`` refuses this (attempt, term) with StaleFence: a late call brings nothing back. Unavailable
        where something cannot be ended yet (a process that hangs in the kernel).
        """
        ...

    async def jobs(self) -> Sequence[str]:
        """Ids of all jobs of which anything exists here, whether their documents know of it or not."""
        ...

    def watch(self) -> AsyncIterator[str]:
        """Ids of jobs something happened to, as it happens. Hints only.

        "" says: look at all of them again, e.g. after a reconnect.
        """
        ...

    async def ping(self) -> None: ...

    async def close(self) -> None: ...
