"""What running jobs use of the GPUs that they hold: it shows which GPUs are allocated and idle.

A learner is idle if none of its measurements of the last minutes reaches a small share of its GPUs. Where its GPUs are
not measured (in pods, or without NVIDIA's driver), its CPUs are judged in their place, and the answer says so. A job
that has run for less than those minutes is not judged: it may still load its data.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import structlog

from services.api.answers import Answer, Time, as_time, doc
from services.api.clients import TelemetryClient
from services.api.platform import spec_of
from services.core.domain.errors import WeftError
from services.core.domain.job import Job
from services.core.domain.spec import JobSpec
from services.core.domain.status import Status
from services.core.domain.usage import CPU, GPU, USAGE
from services.core.ports.clock import Clock
from services.core.ports.job_store import JobQuery, JobStore
from services.core.ports.metric_store import PointQuery, StoredPoint

log = structlog.get_logger()
_MOST_JOBS: Final = 500
_AT_A_TIME: Final = 8
_RECENT_S: Final = 10.0
"""So long an answer is cached: screens that show it request it every few seconds."""
_MOST_TENANTS: Final = 1_000
_ANSWER_S: Final = 1.5
_POINTS: Final = 100
"""Of each learner; the largest ones are among them."""


class GpuUse(Answer):
    """What a running job uses of its GPUs."""

    job: Annotated[str, doc("Id of the job.")]
    name: Annotated[str, doc("Name from its spec.")]
    tenant: Annotated[str, doc("Tenant that it belongs to.")]
    user: Annotated[str, doc("User who submitted it.")]
    since: Annotated[Time, doc("Since when it trains.")]
    gpus: Annotated[float, doc("GPUs that its learners hold.")]
    idle: Annotated[float, doc("GPUs of its learners that are idle; 0 while it has trained for less than the window.")]
    used: Annotated[
        float | None, doc("GPUs in use: the most of each learner in the window, summed; null: they are not measured.")
    ]
    cpus: Annotated[
        float | None, doc("CPU cores in use: the most of each learner in the window, summed; null: not measured.")
    ]


@dataclass(frozen=True, slots=True)
class IdleRule:
    """Which learners are idle."""

    window_s: float
    """Only measurements of the last so many seconds count."""
    share: float
    """Use below this share of the learner's GPUs, or of one CPU core, is idle."""


class GpuUses:
    """What running jobs use of their GPUs, by tenant. An answer is cached for ten seconds."""

    def __init__(self, store: JobStore, telemetry: TelemetryClient, clock: Clock, rule: IdleRule) -> None:
        self._store, self._telemetry, self._clock, self._rule = store, telemetry, clock, rule
        self._recent: dict[str | None, tuple[float, Sequence[GpuUse] | None]] = {}
        self._reading: dict[str | None, asyncio.Lock] = {}

    @property
    def window_s(self) -> float:
        return self._rule.window_s

    async def of(self, tenant: str | None) -> Sequence[GpuUse] | None:
        """Of the tenant's jobs (None: of all tenants) that train with GPUs, at most 500; those with most idle GPUs
        first. None while the metrics service does not answer.
        """
        async with self._reading.setdefault(tenant, asyncio.Lock()):
            read_at, answer = self._recent.get(tenant, (-_RECENT_S, None))
            if self._clock.boottime() - read_at < _RECENT_S:
                return answer
            if len(self._recent) >= _MOST_TENANTS:
                self._recent.clear()
                self._reading.clear()
            answer = await self._read(tenant)
            self._recent[tenant] = self._clock.boottime(), answer
            return answer

    async def _read(self, tenant: str | None) -> Sequence[GpuUse] | None:
        jobs = await self._store.find(JobQuery(tenant=tenant, statuses=(Status.PROCESSING,)), limit=_MOST_JOBS)
        limited, now = asyncio.Semaphore(_AT_A_TIME), self._clock.now_ms()
        since_ms = now - round(self._rule.window_s * 1000)

        async def use_of(job: Job, spec: JobSpec) -> GpuUse:
            query = PointQuery(names=(CPU, GPU), attempt=job.attempt.number, since_ms=since_ms, max_points=_POINTS)
            async with limited:
                points, _ = await self._telemetry.series(job.id, query)
            return gpu_use(job, spec, points, self._rule, now=now)

        specs = [(job, spec) for job in jobs if (spec := spec_of(job)) is not None and spec.gpus > 0]
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await asyncio.gather(*(use_of(job, spec) for job, spec in specs))
        except (WeftError, TimeoutError) as away:
            log.debug("gpu_use.not_read", why=str(away))
            return None
        return sorted(answer, key=lambda use: (-use.idle, -use.gpus, use.since))


def gpu_use(job: Job, spec: JobSpec, points: Sequence[StoredPoint], rule: IdleRule, *, now: int) -> GpuUse:
    """What the job uses, from the points of its learners' usage in the window. ``now``: Unix ms."""
    gpus, cpus = _most(points, GPU), _most(points, CPU)
    judged = now - job.state.since >= rule.window_s * 1000
    idle = 0.0
    for learner in gpus.keys() | cpus.keys():
        held = spec.role_resources(learner[0]).gpus if learner[0] in spec.roles else 0.0
        used, full = (gpus[learner], held) if learner in gpus else (cpus[learner], 1.0)
        if judged and held > 0 and used < rule.share * full:
            idle += held
    return GpuUse(
        job=job.id,
        name=str(job.spec.get("name", "")),
        tenant=job.tenant,
        user=job.user,
        since=as_time(job.state.since),
        gpus=spec.gpus,
        idle=idle,
        used=round(sum(gpus.values()), 3) if gpus else None,
        cpus=round(sum(cpus.values()), 3) if cpus else None,
    )


def _most(points: Sequence[StoredPoint], name: str) -> Mapping[tuple[str, int], float]:
    """The largest value of each learner."""
    most: dict[tuple[str, int], float] = {}
    for stored in points:
        point = stored.point
        if point.name == name and point.context == USAGE and math.isfinite(point.value):
            learner = stored.source.role, stored.source.rank
            most[learner] = max(point.value, most.get(learner, 0.0))
    return most
