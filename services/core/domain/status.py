"""The status machine of a job (contracts.md). Terminal states are sinks.

``RESUMED`` is an event in the history, never a stored status: a resume appends HALTED -> RESUMED and
RESUMED -> QUEUED in one replace.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Status(StrEnum):
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


class Desired(StrEnum):
    """What the owner wants. Facts beat wishes; among wishes kill > halt > run."""

    RUN = "run"
    HALT = "halt"
    KILL = "kill"


class Phase(StrEnum):
    """A learner's phase as its helper reports it, in order."""

    WAITING = "WAITING"
    DOWNLOADING = "DOWNLOADING"
    READY = "READY"
    PROCESSING = "PROCESSING"
    STORING = "STORING"
    STORED = "STORED"


PHASE_ORDER: Final = {phase: place for place, phase in enumerate(Phase)}

TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.KILLED})
RESTING: Final = TERMINAL | {Status.HALTED}
"""Nothing runs and nothing will, unless the owner asks (resume)."""
ADMITTED: Final = frozenset({Status.PENDING, Status.DOWNLOADING, Status.PROCESSING, Status.STORING, Status.HALTING})

_S = Status
_FORWARD: Final[dict[Status, frozenset[Status]]] = {
    _S.QUEUED: frozenset({_S.PENDING, _S.HALTED, _S.HALTING}),
    _S.PENDING: frozenset({_S.DOWNLOADING, _S.PROCESSING, _S.STORING, _S.QUEUED, _S.HALTING, _S.COMPLETED}),
    _S.DOWNLOADING: frozenset({_S.PROCESSING, _S.STORING, _S.QUEUED, _S.HALTING, _S.COMPLETED}),
    _S.PROCESSING: frozenset({_S.STORING, _S.QUEUED, _S.HALTING, _S.COMPLETED}),
    _S.STORING: frozenset({_S.COMPLETED, _S.QUEUED, _S.HALTING}),
    # Facts beat wishes: a learner that had exited 0 before it was told to stop has completed.
    _S.HALTING: frozenset({_S.HALTED, _S.COMPLETED}),
    _S.HALTED: frozenset({_S.RESUMED, _S.KILLED}),
    _S.RESUMED: frozenset({_S.QUEUED}),
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
    _S.KILLED: frozenset(),
}


def allowed(current: Status, to: Status) -> bool:
    """Whether the machine has an edge ``current -> to`` (a status to itself is not an edge)."""
    if current in RESTING:
        return to in _FORWARD[current]
    return to in _FORWARD[current] or to in {_S.FAILED, _S.KILLED}
