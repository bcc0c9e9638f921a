"""The plan of one attempt: everything a cluster needs to know to provision all of its learners or none.

Rendered once, by pure code, when an attempt is provisioned; plans of running attempts are never rendered anew.
The same plan goes to every cluster adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerPlan:
    """One learner: who it is, what it runs, what it gets."""

    name: str
    """``worker-0``: role and place within the role."""
    role: str
    rank: int
    """Global, from 0."""
    command: str
    """For ``/bin/sh -c``, in MODEL_DIR."""
    cpus: float
    memory: int
    """Bytes."""
    gpus: float
    node: str
    token: str
    """Good for this job, attempt and rank only."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The user's own variables and those of Weft that do not depend on the node. Folders, ports, peers' addresses
    and GPU numbers are the cluster adapter's to add (contracts.md, "Learner environment")."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Data to fetch into ``DATA_DIR/<mount>`` before the learner starts."""

    mount: str
    type: str
    """local | http."""
    location: str
    """An absolute path, or a URL."""
    path: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    """All learners of one attempt. Durations in milliseconds."""

    job: str
    tenant: str
    attempt: int
    term: int
    """The Guardian's: a cluster refuses an older one."""
    learners: tuple[LearnerPlan, ...]
    distribution: str
    framework: str
    """Name of a library entry, ``name-version``; empty: the machine's own shell and tools."""
    code_digest: str
    inputs: tuple[Input, ...]
    grace: int
    store_timeout: int
    checkpoint_keep: int
    metrics_files: tuple[str, ...] = ()
    """JSON-lines files of metrics, relative to LOG_DIR, besides weft.report's and stdout."""
    checkpoint_attempts: tuple[int, ...] = ()
    """Earlier attempts whose recorded checkpoints may be restored, newest first."""
    trace: str = ""
    schema: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)
