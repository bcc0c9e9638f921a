"""The JSON of every answer (docs/api.md), as types: the OpenAPI document and gRPC's messages are made from them."""

from __future__ import annotations

from typing import Any, Final, NotRequired

from typing_extensions import TypedDict


class SizeJson(TypedDict):
    """Of one learner, or summed up. Memory in bytes."""

    cpus: float
    memory: int
    gpus: float


class AttemptJson(TypedDict):
    number: int
    admitted: str | None
    started: str | None
    committed: bool
    placement: dict[str, str]


class CountersJson(TypedDict):
    retries: int
    restarts: int
    preemptions: int


class VerdictJson(TypedDict):
    to: str
    reason: str
    message: str
    time: str
    learner: str
    exit_code: int | None
    signal: int | None


class JobJson(TypedDict):
    id: str
    name: str
    tenant: str
    user: str
    tags: list[str]
    status: str
    reason: str
    message: str
    since: str
    pending_reason: str
    pending_message: NotRequired[str]
    queue_position: NotRequired[int]
    at_rest: bool
    desired: str
    generation: int
    observed_generation: int
    learners: int
    resources: SizeJson
    framework: str
    attempt: AttemptJson
    counters: CountersJson
    verdict: VerdictJson | None
    code_digest: str
    created: str
    updated: str
    finished: str | None
    released: str | None
    deleted: NotRequired[str]
    summary: dict[str, Any]
    spec: NotRequired[dict[str, Any]]
    warnings: NotRequired[list[str]]


FIELDS: Final = (*JobJson.__required_keys__, *JobJson.__optional_keys__)


class JobsJson(TypedDict):
    jobs: list[JobJson]
    next: str | None


class RoleNeedsJson(SizeJson):
    count: int


class NeedsJson(TypedDict):
    total: SizeJson
    roles: dict[str, RoleNeedsJson]


class FrameworkJson(TypedDict):
    id: str
    name: str
    version: str
    aliases: list[str]
    python: str
    size_mb: int
    description: str


class CodeJson(TypedDict):
    digest: str
    stored: bool


class LimitsJson(TypedDict):
    max_code_bytes: int
    max_spec_bytes: int


class PlanJson(TypedDict):
    dry_run: bool
    spec: dict[str, Any]
    learners: int
    resources: NeedsJson
    framework: FrameworkJson | None
    fits: str
    fits_message: str
    code: CodeJson | None
    limits: LimitsJson
    warnings: list[str]


EventJson = TypedDict(
    "EventJson",
    {
        "seq": int, "time": str, "actor": str, "generation": int, "from": str | None, "to": str, "attempt": int,
        "reason": str, "message": str,
    },
)  # fmt: skip


class HistoryJson(TypedDict):
    events: list[EventJson]


class ExplainJson(TypedDict):
    id: str
    status: str
    summary: str
    reason: str
    message: str
    pending_reason: str
    queue_position: NotRequired[int]
    hints: list[str]


class LineJson(TypedDict):
    seq: int
    time: str
    attempt: int
    role: str
    rank: int
    run: int
    stream: str
    text: str
    partial: bool


class LinesJson(TypedDict):
    lines: list[LineJson]
    next: int
    more: bool


class PointJson(TypedDict):
    seq: int
    time: str
    attempt: int
    role: str
    rank: int
    run: int
    source: str
    name: str
    step: int | None
    value: float | str
    context: dict[str, str]


class SeriesJson(TypedDict):
    name: str
    context: dict[str, str]
    role: str
    rank: int
    steps: list[int | None]
    values: list[float | str]
    times: list[str]
    attempts: list[int]


class MetricsJson(TypedDict):
    """``points``, ``next`` and ``more``; or, where asked for, ``series``."""

    points: NotRequired[list[PointJson]]
    next: NotRequired[int]
    more: NotRequired[bool]
    series: NotRequired[list[SeriesJson]]


class ProgressJson(TypedDict):
    status: str
    progress: float | None
    eta_ms: int | None
    lines: int
    points: int
    latest: dict[str, PointJson]


class ArtifactJson(TypedDict):
    path: str
    size: int
    modified: str
    etag: str


class ArtifactsJson(TypedDict):
    artifacts: list[ArtifactJson]
    next: str | None


class EndJson(TypedDict):
    id: str
    status: str
    reason: str
    message: str
    exit_code: int | None
    at_rest: bool
    deleted: bool


class WaitingJson(TypedDict):
    id: str
    name: str
    tenant: str
    user: str
    created: str
    position: NotRequired[int]
    pending_reason: str
    message: str


class QueueJson(TypedDict):
    waiting: list[WaitingJson]


class NodeJson(SizeJson):
    name: str
    gpu_type: str
    ready: bool


class ClusterJson(TypedDict):
    nodes: NotRequired[list[NodeJson]]
    isolation: NotRequired[str]
    total: NotRequired[SizeJson]
    used: NotRequired[SizeJson]
    jobs: dict[str, int]


class FrameworksJson(TypedDict):
    frameworks: list[FrameworkJson]


class NamedSizeJson(SizeJson):
    name: str


class SizesJson(TypedDict):
    sizes: list[NamedSizeJson]


class VersionJson(TypedDict):
    version: str
    api: str
    capabilities: list[str]


class WhoJson(TypedDict):
    user: str
    tenant: str
    scope: str
    key_id: str
    permissions: list[str]


class KeyJson(TypedDict):
    id: str
    name: str
    user: str
    tenant: str
    scope: str
    created: str
    revoked: str | None
    key: NotRequired[str]


class KeysJson(TypedDict):
    keys: list[KeyJson]


class HeldJson(TypedDict):
    """One thing that cannot be read. ``job``: the one that is harmed, or empty."""

    service: str
    kind: str
    place: str
    reason: str
    since: str
    job: str
    advice: str


class QuarantineJson(TypedDict):
    """``silent``: services that did not answer; what they hold is not in the list."""

    held: list[HeldJson]
    silent: list[str]
