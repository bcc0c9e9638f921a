"""The cluster: provisions, observes and stops learners. Adapters: ``local`` (the node agent of this machine) and
``kubernetes``.

Every call that changes something carries the ``attempt`` and the Guardian's ``term``. The cluster stores the highest
pair (attempt, term) that it has seen of each job, and refuses lower ones with StaleFence. Every call may be repeated: a
repetition has no further effect.

A call that was sent before a later pair was seen may take effect after it. Nothing that is stale is ever activated, and
what such a call has created is inert and gone within 30 seconds; on Kubernetes, what has no pod, within two seconds
more for each tenant.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from services.core.domain.learner import Exit
from services.core.domain.plan import AttemptPlan
from services.core.domain.sizes import Devices
from services.core.domain.startup import Span

ISOLATION_LABEL: Final = "weft.dev/isolation"
"""Label of a node: how its learners are isolated (sandbox | process | trusted | pod)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The total resources of a node for learners. The dispatcher computes what is free from unreleased admissions."""

    name: str
    cpus: float
    """CPU cores."""
    memory: int
    """Bytes."""
    gpus: int
    gpu_type: str = ""
    """Model of the GPUs, e.g. v100; empty: unknown or none."""
    devices: Devices = ()
    """Beside GPUs: those that the operator lets learners have."""
    slots: int | None = None
    """How many learners it can have at most, whatever they need; None: there is no such bound."""
    ready: bool = True
    """False: no learners can be placed on it now."""
    only_gpus: bool = False
    """True: only learners that need a GPU can be placed on it."""
    pressure: str = ""
    """Why no further learners should be placed on it now, e.g. an almost full disk, for people; empty: nothing."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerProcess:
    """A learner as the cluster itself observes it, independent of its helper's reports."""

    name: str
    """``<role>-<index>``, e.g. ``worker-0``."""
    attempt: int
    state: str
    """inert (provisioned, not activated) | starting (activated; its helper or its container does not run yet) |
    waiting (all runs but the learner's process) | running | exited.
    """
    run: int = 0
    """The number of its process's start within the attempt, from 1; 0: not started."""
    planned_run: int = 1
    """The ``LearnerPlan.run`` that it was made for."""
    pid: int | None = None
    started: int | None = None
    """Unix ms of the process's start; None: not started."""
    may_have_started: bool = False
    """``started`` is None, but only its helper reports a start, and this report may be under way or lost. True until
    the cluster has a record of its end, or cannot get one.
    """
    exit: Exit | None = None
    stored: bool = False
    """Its helper has stored all results and ended. Kept here too, because the status store may lose its data."""
    reason: str = ""
    """Why its helper failed before the process ran; empty: it did not fail."""
    message: str = ""
    """The failure of the helper, for people."""
    blocked: str = ""
    """Why it has not left ``starting``, e.g. Unschedulable, ImagePullFailed; empty: nothing is known to be wrong."""
    blocked_message: str = ""
    """What blocks it and what to do, for people."""
    blocked_for_good: bool = False
    """Waiting cannot help: the attempt should be undone."""
    can_store: bool = True
    """False: its helper does not run any more, so it stores no results: its node is lost, or its pod has ended."""
    is_ending: bool = False
    """The cluster ends it, and its process may still use its grace period to save what it has."""
    readable: bool = True
    """False: the cluster's record of it is damaged or lost, so its helper's report says whether it ran and ended."""
    startup: Mapping[str, Span] = field(default_factory=dict)
    """Steps of the start-up that the cluster carries out (``schedule``, ``image``) -> when they began and ended."""
    node: str = ""
    cpus: float = 0
    """CPU cores that it holds of its node, as long as it is observed here, whatever its job's document says."""
    memory: int = 0
    """Bytes."""
    gpus: float = 0
    devices: Devices = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All that exists of a job on the cluster, of any attempt."""

    learners: Sequence[LearnerProcess]
    attempts: Sequence[int]
    """Attempts of which a folder, a process or an object exists."""


class Cluster(Protocol):
    """The only way to where learners run."""

    async def capacity(self) -> Sequence[Node]:
        """Returns all nodes, those that are not ready too."""
        ...

    async def prepare(self, tenant: str) -> None:
        """Makes the cluster ready for learners of the tenant. The LCM calls it before each admission of a job.

        A repetition costs little. Raises Conflict where something else has the tenant's place in the cluster.
        """
        ...

    def steps(self) -> Sequence[str]:
        """Returns the names of the steps that provision an attempt, in order. The last one activates the learners."""
        ...

    async def do(self, step: str, plan: AttemptPlan) -> None:
        """Carries out one step of a plan. A step that is already carried out has no further effect.

        ``learners`` and ``activate`` are repeated on a running attempt to start a learner again, whose ``run`` is
        higher than before. What is left of its earlier run is removed first; Unavailable until that is gone. A run is
        made at most once: one that has vanished is not made again.

        Raises StaleFence for an attempt or term that is over. Raises ResourceExhausted or InvalidRequest, with the
        reason, where the cluster cannot carry it out.
        """
        ...

    async def observe(self, job_id: str, *, cached: bool = False) -> Observation:
        """Returns what exists of a job now; an empty observation where nothing does.

        ``cached``: an earlier observation will do if the cluster has reported no change since, and this adapter has
        changed nothing. It may be minutes old where a report was lost, so no decision is made on it. An adapter whose
        reads cost little may ignore this.
        """
        ...

    async def stop(self, job_id: str, *, attempt: int, term: int, generation: int, cause: str, grace_ms: int) -> None:
        """Stops the learners of an attempt: SIGTERM to all, SIGKILL after ``grace_ms`` milliseconds (0: at once).

        ``cause``: halt | kill | peer | deadline. It is made durable beside each learner (the stop mark) before the
        signal, and is in the learner's ``Exit``. ``generation``: that of the job, for the mark. Returns when the marks
        are durable and the signals sent, not when the learners have ended. Raises StaleFence.

        A learner that has exited is unchanged. One that has not started ends without starting. A stop with a shorter
        grace overrides an earlier one; one with a longer grace has no effect. After ``kill`` helpers store nothing.
        """
        ...

    async def teardown(self, job_id: str, *, attempt: int, term: int) -> None:
        """Ends and removes all that exists of the attempt and of earlier ones. Returns when it is gone.

        Afterwards ``do`` refuses this (attempt, term) with StaleFence, so that a late call creates nothing. Raises
        StaleFence, and Unavailable where something cannot be ended yet (a process that hangs in the kernel).
        """
        ...

    async def jobs(self, *, cached: bool = False) -> Sequence[str]:
        """Returns the ids of all jobs of which anything exists on the cluster, with or without a job document.

        ``cached``: as the cluster has last reported. A job may be named a little after its end; one of which only
        something without learners exists may be named minutes late. An adapter whose reads cost little may ignore this.
        """
        ...

    def watch(self) -> AsyncIterator[str]:
        """Yields the id of a job when something of it changes. Ids are hints: some may be missing or repeated.

        An empty id means that any job may have changed, e.g. after a reconnect: the reader observes all of them.
        """
        ...

    async def ping(self) -> None:
        """Raises Unavailable where the cluster does not answer."""
        ...

    async def close(self) -> None:
        """Closes connections. Learners go on."""
        ...
