"""The plan of one attempt: all that a cluster needs to provision every learner of it, or none.

The Guardian renders it once, when it provisions the attempt. Plans of running attempts are not rendered again. Every
cluster adapter gets the same plan. What only a cluster knows (addresses, ports, folders, GPUs) is a placeholder in the
plan, which the cluster's adapter fills.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, assert_never

SCHEMA: Final = 2
"""Of a plan. Schema 1 had no ``variables``: the node agent rendered them."""


class PartKind(StrEnum):
    """What a part of a variable's value is: literal text, or one of the placeholders. A closed set."""

    TEXT = "text"
    """``value`` is the text itself. It is never searched for anything."""
    ADDRESS = "address"
    """A host name or IP address at which the others reach the learner named by ``value``."""
    PORT = "port"
    """The TCP port that the cluster gives to the learner named by ``value``, for the others to connect to."""
    INTERFACE = "interface"
    """The network interface between the learners. A cluster that does not name it leaves the variable out."""
    FOLDER = "folder"
    """The absolute path of a folder of the learner: ``value`` is a ``Folder``."""
    GPU_COUNT = "gpu-count"
    """How many GPUs the learner sees. A shared GPU counts as one."""
    PROCESS_COUNT = "process-count"
    """One process per GPU that the learner sees; without GPUs one."""


class Folder(StrEnum):
    """The folders of a learner (contracts.md, "Learner environment")."""

    JOB_STATE = "job-state"
    """Contains all others but ``SDK``."""
    MODEL = "model"
    DATA = "data"
    RESULT = "result"
    CHECKPOINT = "checkpoint"
    LOG = "log"
    HOME = "home"
    TEMPORARY = "temporary"
    SDK = "sdk"
    """The part of the SDK that training code imports. Read-only."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a variable's value. The value is the texts of its parts, joined."""

    kind: PartKind
    value: str = ""


Variables = Mapping[str, tuple[Part, ...]]
"""Name of an environment variable -> the parts of its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterValues:
    """What the cluster's adapter knows of one learner: the values of all placeholders."""

    address_of: Callable[[str], str]
    """Name of a learner -> its address."""
    port_of: Callable[[str], int]
    """Name of a learner -> its port, for all that the variables refer to (``learners_with_ports``)."""
    interface: str | None
    """None: the cluster does not name it."""
    folders: Mapping[Folder, str]
    """All of them, as absolute paths."""
    gpu_count: int


def fill(variables: Variables, values: ClusterValues) -> dict[str, str]:
    """The variables as text, without those that contain a placeholder which the cluster does not name.

    The text of TEXT parts is copied as it is, so users' text cannot become a placeholder.
    """
    filled: dict[str, str] = {}
    for name, parts in variables.items():
        texts = [_text(part, values) for part in parts]
        present = [text for text in texts if text is not None]
        if len(present) == len(texts):
            filled[name] = "".join(present)
    return filled


def _text(part: Part, values: ClusterValues) -> str | None:
    match part.kind:
        case PartKind.TEXT:
            return part.value
        case PartKind.ADDRESS:
            return values.address_of(part.value)
        case PartKind.PORT:
            return str(values.port_of(part.value))
        case PartKind.INTERFACE:
            return values.interface
        case PartKind.FOLDER:
            return values.folders[Folder(part.value)]
        case PartKind.GPU_COUNT:
            return str(values.gpu_count)
        case PartKind.PROCESS_COUNT:
            return str(max(1, values.gpu_count))
        case _:
            assert_never(part.kind)


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
    """The user's own variables: literal text."""
    gpu_type: str = ""
    """Model of GPU that its node must have; empty: any."""
    shm: int = 0
    """Bytes of /dev/shm; 0: the cluster's default."""
    devices: Mapping[str, int] = field(default_factory=dict)
    """Beside GPUs: name of an extended resource of Kubernetes -> count."""
    run: int = 1
    """Which start of the learner within the attempt this is. The cluster replaces a learner of a lower run."""
    variables: Variables = field(default_factory=dict)
    """Weft's variables for this learner. They win over the attempt's, and both win over ``env``."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Data that is fetched into ``DATA_DIR/<mount>`` before the learner starts."""

    mount: str
    type: str
    """local | http | pvc | s3."""
    location: str
    """An absolute path for ``local``, a URL for ``http``, the name of a claim for ``pvc``; for ``s3`` as in
    ``services.core.domain.s3_data``."""
    path: str = ""
    """The part of the data store to fetch, relative to ``location``; empty: all of it."""
    secret: str = ""
    """Name of the tenant's secret that the store needs, for messages; empty: none."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where results are stored in place of the platform's store."""

    type: str
    """pvc."""
    location: str
    """The name of the claim."""
    path: str = ""
    """Folder in the data store: names that '/' separates; empty: its top. Attempts have folders of their own there."""
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
    """By rank."""
    distribution: str
    """How the learners find one another: none, torchrun, jax, ..."""
    framework: str
    """``<name>-<version>`` of an entry of the framework library; empty: the shell and tools of the machine."""
    image: str = ""
    """Container image of the user's choice; empty: the one of ``framework``. Clusters without images refuse it."""
    image_pull_secret: str = ""
    """Name of the tenant's secret with the credentials of the image's registry; empty: none. The credentials are in no
    plan: the cluster's adapter gets them where it needs them (``services.core.ports.pull_credentials``)."""
    priority: str = "normal"
    """low | normal | high."""
    placement: str = "pack"
    """pack | spread, or a topology key."""
    code_digest: str
    """``sha256:<hex>`` of the code archive; empty: no code."""
    inputs: tuple[Input, ...]
    output: Output | None = None
    """None: results are stored in the platform's store."""
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
    checkpoint_path: str = ""
    """Path in MODEL_DIR that leads to CHECKPOINT_DIR; empty: none."""
    variables: Variables = field(default_factory=dict)
    """Weft's variables that are the same for all learners."""
    trace: str = ""
    """W3C traceparent of the job's submission."""
    schema: int = SCHEMA
    extra: Mapping[str, Any] = field(default_factory=dict)


def learners_with_ports(plan: AttemptPlan) -> list[str]:
    """Names of the learners to which the plan's variables refer by port, in the order of first use."""
    every = (plan.variables, *(learner.variables for learner in plan.learners))
    parts = (part for variables in every for value in variables.values() for part in value)
    return list(dict.fromkeys(part.value for part in parts if part.kind is PartKind.PORT))
