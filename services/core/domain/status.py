"""The status machine of a job (contracts.md, "Job states") and the phases of a learner.

No edge leads out of a terminal status. ``RESUMED`` occurs in the history only and is never stored as a status: a resume
appends HALTED -> RESUMED and RESUMED -> QUEUED in one replace.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Status(StrEnum):
    """The status of a job."""

    QUEUED = "QUEUED"
    PENDING = "PENDING"
    DOWNLOADING = "DOWNLOADING"
    PROCESSING = "PROCESSING"
    STORING = "STORING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    KILLED = "KILLED"
    HALTING = "HALTING"
    HALTED = "HALTED"
    RESUMED = "RESUMED"


class PendingReason(StrEnum):
    """Why a QUEUED job waits. Shown to users, who may compare it: a value never changes its meaning."""

    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    """Its gang does not fit into what is free now."""
    WAITING_IN_QUEUE = "WaitingInQueue"
    """A job ahead of it waits for capacity."""
    TOO_LARGE_FOR_CLUSTER = "TooLargeForCluster"
    """Its gang is larger than the whole cluster."""
    BACK_OFF = "BackOff"
    """The pause before its next attempt has not ended."""
    RELEASING = "Releasing"
    """Its last attempt still holds hardware."""
    WAITING_FOR_DISK = "WaitingForDisk"
    """A disk of the platform or of its nodes is almost full: nothing is admitted."""
    PLATFORM_STOPPING = "PlatformStopping"
    """`weft down` halts the jobs: nothing is admitted until the next `weft up`."""
    TENANT_NOT_READY = "TenantNotReady"
    """The cluster cannot be made ready for learners of its tenant."""
    MISCONFIGURED = "Misconfigured"
    """Its stored spec cannot be read."""


class Desired(StrEnum):
    """The state that the owner wants. Order of precedence: kill > what already happened > halt > run."""

    RUN = "run"
    HALT = "halt"
    KILL = "kill"


class Phase(StrEnum):
    """The phase of a learner, as its helper reports it; in order of time."""

    WAITING = "WAITING"
    DOWNLOADING = "DOWNLOADING"
    READY = "READY"
    PROCESSING = "PROCESSING"
    STORING = "STORING"
    STORED = "STORED"


PHASE_ORDER: Final = {phase: index for index, phase in enumerate(Phase)}
"""Phase -> its position, from 0."""

TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.KILLED})
RESTING: Final = TERMINAL | {Status.HALTED}
"""Nothing runs, and nothing will start unless the owner resumes the job."""
ADMITTED: Final = frozenset({Status.PENDING, Status.DOWNLOADING, Status.PROCESSING, Status.STORING, Status.HALTING})
"""An attempt is being provisioned, runs or is being ended."""

_S = Status
_FORWARD: Final[dict[Status, frozenset[Status]]] = {
    _S.QUEUED: frozenset({_S.PENDING, _S.HALTED, _S.HALTING}),
    _S.PENDING: frozenset({_S.DOWNLOADING, _S.PROCESSING, _S.STORING, _S.QUEUED, _S.HALTING, _S.COMPLETED}),
    _S.DOWNLOADING: frozenset({_S.PROCESSING, _S.STORING, _S.QUEUED, _S.HALTING, _S.COMPLETED}),
    _S.PROCESSING: frozenset({_S.STORING, _S.QUEUED, _S.HALTING, _S.COMPLETED}),
    _S.STORING: frozenset({_S.COMPLETED, _S.QUEUED, _S.HALTING}),
    # Learners that exited with 0 before the stop signal have completed the job.
    _S.HALTING: frozenset({_S.HALTED, _S.COMPLETED}),
    _S.HALTED: frozenset({_S.RESUMED, _S.KILLED}),
    _S.RESUMED: frozenset({_S.QUEUED}),
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
    _S.KILLED: frozenset(),
}


def allowed(current: Status, to: Status) -> bool:
    """Whether the status machine has the edge ``current -> to``. There is no edge from a status to itself."""
    if current in RESTING:
        return to in _FORWARD[current]
    return to in _FORWARD[current] or to in {_S.FAILED, _S.KILLED}
