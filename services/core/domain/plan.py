"""The plan of one attempt: all that a cluster needs to provision every learner of it, or none.

The Guardian renders it once, when it provisions the attempt. Plans of running attempts are not rendered again. Every
cluster adapter gets the same plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerPlan:
    """One learner: its identity, its command and its resources."""

    name: str
    """``<role>-<index>``, e.g. ``worker-0``."""
    role: str
    rank: int
    """Global rank, from 0."""
    command: str
    """Run by ``/bin/sh -c`` in MODEL_DIR."""
    cpus: float
    """CPU cores."""
    memory: int
    """Bytes."""
    gpus: float
    node: str
    """Name of the node that the dispatcher chose."""
    token: str
    """Learner token (``services.core.domain.tokens``) for this job, attempt and rank."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The user's variables and those of Weft that do not depend on the node. The cluster adapter adds folders, ports,
    addresses of peers and GPU numbers (contracts.md, "Learner environment")."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Data that is fetched into ``DATA_DIR/<mount>`` before the learner starts."""

    mount: str
    type: str
    """local | http."""
    location: str
    """An absolute path for ``local``, a URL for ``http``."""
    path: str = ""
    """The part of the data store to fetch, relative to ``location``; empty: all of it."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    """All learners of one attempt. Durations are milliseconds."""

    job: str
    """Job id."""
    tenant: str
    attempt: int
    term: int
    """The Guardian's term. A cluster refuses a lower one than it has seen."""
    learners: tuple[LearnerPlan, ...]
    distribution: str
    """How the learners find one another: none, torchrun, jax, ..."""
    framework: str
    """``<name>-<version>`` of an entry of the framework library; empty: the shell and tools of the machine."""
    code_digest: str
    """``sha256:<hex>`` of the code archive; empty: no code."""
    inputs: tuple[Input, ...]
    grace: int
    """Milliseconds between SIGTERM and SIGKILL."""
    store_timeout: int
    """Milliseconds that helpers get to store results after the learner's end."""
    checkpoint_keep: int
    """How many checkpoints are kept."""
    metrics_files: tuple[str, ...] = ()
    """JSON-lines files of metrics, relative to LOG_DIR, in addition to that of weft.report and to stdout."""
    checkpoint_attempts: tuple[int, ...] = ()
    """Earlier attempts whose recorded checkpoints may be restored, newest first."""
    trace: str = ""
    """W3C traceparent of the job's submission."""
    schema: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)
