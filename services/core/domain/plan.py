"""The plan of one attempt: everything a cluster needs to know to provision all of its learners or none.

Rendered once, by pure code, when an attempt is provisioned; plans of running attempts are never rendered anew.
The same plan goes to every cluster adapter. What only a cluster knows (addresses, ports, folders, GPUs) is a
placeholder in the plan, which the cluster's adapter fills.
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
    ports: Mapping[str, int]
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
            return str(values.ports[part.value])
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
    """The user's own variables: literal text."""
    variables: Variables = field(default_factory=dict)
    """Weft's variables for this learner. They win over the attempt's, and both win over ``env``."""
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
    """By rank."""
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
    variables: Variables = field(default_factory=dict)
    """Weft's variables that are the same for all learners."""
    trace: str = ""
    schema: int = SCHEMA
    extra: Mapping[str, Any] = field(default_factory=dict)


def learners_with_ports(plan: AttemptPlan) -> list[str]:
    """Names of the learners to which the plan's variables refer by port, in the order of first use."""
    every = (plan.variables, *(learner.variables for learner in plan.learners))
    parts = (part for variables in every for value in variables.values() for part in value)
    return list(dict.fromkeys(part.value for part in parts if part.kind is PartKind.PORT))
