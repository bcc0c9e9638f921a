"""Use cases' values written down as the JSON of ``shapes``, for every door. Pure, one function per shape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from services.api.artifacts import Artifact
from services.api.clients import Summary, Waiting
from services.api.keys import ApiKey
from services.api.platform import ClusterState, Quarantined, spec_of
from services.api.schemas import (
    ArtifactJson,
    ClusterJson,
    EndJson,
    EventJson,
    FrameworkJson,
    JobJson,
    KeyJson,
    LimitsJson,
    LineJson,
    PlanJson,
    PointJson,
    ProgressJson,
    QuarantineJson,
    RoleNeedsJson,
    SeriesJson,
    SizeJson,
    VerdictJson,
    WaitingJson,
)
from services.api.submit import Plan
from services.core.domain.codec import dump
from services.core.domain.job import Event, Job, Verdict
from services.core.domain.sizes import Size
from services.core.domain.spec import dump_spec
from services.core.frameworks import Framework
from services.core.ports.metric_store import StoredLine, StoredPoint

_encoder: Final = msgspec.json.Encoder()
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that can be written."""


def encoded(value: object) -> bytes:
    """JSON. Numbers that it has no word for become null; where they mean something they are made words by ``number``.

    Half a surrogate pair: see ``printable``. One ruined document must not hide all others.
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_writable(msgspec.to_builtins(value)))


def printable(text: str) -> str:
    """Half a surrogate pair, which nobody can write, becomes ``?``: documents may be ruined, and messages may hold
    pieces of what was sent.
    """
    return text.encode("utf-8", "replace").decode()


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    return [_writable(item) for item in value] if isinstance(value, list) else value


def rfc3339(ms: int) -> str:
    """Unix milliseconds as ``2026-11-21T13:20:00.123Z``. Of a time that no calendar has (of a ruined document) the
    nearest that one has: it must not hide all others.
    """
    seconds, rest = divmod(min(max(ms, 0), _LAST_MS), 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"


def rfc3339_or_none(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


def number(value: float) -> float | str:
    """A metric's value: what JSON cannot write is a word."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def size_json(size: Size, count: int = 1) -> SizeJson:
    return {"cpus": size.cpus * count, "memory": size.memory * count, "gpus": size.gpus * count}


def total_json(sizes: Iterable[SizeJson]) -> SizeJson:
    total: SizeJson = {"cpus": 0.0, "memory": 0, "gpus": 0.0}
    for one in sizes:
        total["cpus"] += one["cpus"]
        total["memory"] += one["memory"]
        total["gpus"] += one["gpus"]
    return total


def job_json(job: Job, waiting: Waiting | None = None) -> JobJson:
    spec = spec_of(job)
    needs = [size_json(spec.role_resources(name), role.count) for name, role in spec.roles.items()] if spec else []
    framework = spec.framework if spec else None
    state, attempt = job.state, job.attempt
    out: JobJson = {
        "id": job.id,
        "name": str(job.spec.get("name", "")),
        "tenant": job.tenant,
        "user": job.user,
        "tags": list(job.spec.get("tags", ())),
        "status": state.status.value,
        "reason": state.reason,
        "message": state.message,
        "since": rfc3339(state.since),
        "pending_reason": waiting.pending_reason if waiting else state.pending_reason,
        "at_rest": job.at_rest,
        "desired": job.desired.value,
        "generation": job.generation,
        "observed_generation": job.observed_generation,
        "learners": spec.learners if spec else 0,
        "resources": total_json(needs),
        "framework": ":".join(filter(None, (framework.name, framework.version))) if framework else "",
        "attempt": {
            "number": attempt.number,
            "admitted": rfc3339_or_none(attempt.admitted),
            "started": rfc3339_or_none(attempt.started),
            "committed": attempt.committed,
            "placement": dict(attempt.placement),
        },
        "counters": {
            "retries": job.counters.retries,
            "restarts": job.counters.restarts,
            "preemptions": job.counters.preemptions,
        },
        "verdict": verdict_json(job.verdict) if job.verdict else None,
        "code_digest": job.code_digest,
        "created": rfc3339(job.created),
        "updated": rfc3339(job.updated),
        "finished": rfc3339_or_none(job.finished),
        "released": rfc3339_or_none(job.released),
        "summary": dump(job.summary),
        "spec": dump(job.spec),
    }
    if waiting is not None:
        out["queue_position"] = waiting.position
        out["pending_message"] = waiting.message
    if job.deleted is not None:
        out["deleted"] = rfc3339(job.deleted)
    return out


def verdict_json(verdict: Verdict) -> VerdictJson:
    return {
        "to": verdict.to.value,
        "reason": verdict.reason,
        "message": verdict.message,
        "time": rfc3339(verdict.time),
        "learner": verdict.learner,
        "exit_code": verdict.exit_code,
        "signal": verdict.signal,
    }


def event_json(event: Event) -> EventJson:
    return {
        "seq": event.seq,
        "time": rfc3339(event.time),
        "actor": event.actor,
        "generation": event.generation,
        "from": event.from_status.value if event.from_status else None,
        "to": event.to.value,
        "attempt": event.attempt,
        "reason": event.reason,
        "message": event.message,
    }


def end_json(job: Job | None, job_id: str) -> EndJson:
    if job is None:
        return {
            "id": job_id,
            "status": "",
            "reason": "",
            "message": "",
            "exit_code": None,
            "at_rest": True,
            "deleted": True,
        }
    return {
        "id": job.id,
        "status": job.status.value,
        "reason": job.state.reason,
        "message": job.state.message,
        "exit_code": job.verdict.exit_code if job.verdict else None,
        "at_rest": job.at_rest,
        "deleted": job.deleted is not None,
    }


def plan_json(plan: Plan, limits: LimitsJson) -> PlanJson:
    roles: dict[str, RoleNeedsJson] = {
        name: {"count": role.count, **size_json(role.each)} for name, role in plan.roles.items()
    }
    return {
        "dry_run": True,
        "spec": dump_spec(plan.spec),
        "learners": plan.spec.learners,
        "resources": {
            "total": total_json(size_json(role.each, role.count) for role in plan.roles.values()),
            "roles": roles,
        },
        "framework": framework_json(plan.framework) if plan.framework else None,
        "fits": plan.fit.verdict,
        "fits_message": plan.fit.message,
        "code": {"digest": plan.code_digest, "stored": plan.code_stored} if plan.code_digest else None,
        "limits": limits,
        "warnings": list(plan.warnings),
    }


def framework_json(entry: Framework) -> FrameworkJson:
    return {
        "id": f"{entry.name}-{entry.version}",
        "name": entry.name,
        "version": entry.version,
        "aliases": list(entry.aliases),
        "python": entry.python,
        "size_mb": entry.size_mb,
        "description": entry.description,
    }


def line_json(one: StoredLine) -> LineJson:
    source = one.source
    return {
        "seq": one.seq,
        "time": rfc3339(one.line.time_ms),
        "attempt": source.attempt,
        "role": source.role,
        "rank": source.rank,
        "run": source.run,
        "stream": one.stream,
        "text": one.line.text,
        "partial": one.line.partial,
    }


def point_json(one: StoredPoint) -> PointJson:
    source, point = one.source, one.point
    return {
        "seq": one.seq,
        "time": rfc3339(point.time_ms),
        "attempt": source.attempt,
        "role": source.role,
        "rank": source.rank,
        "run": source.run,
        "source": source.source,
        "name": point.name,
        "step": point.step,
        "value": number(point.value),
        "context": dict(point.context),
    }


def series_json(points: Sequence[StoredPoint]) -> list[SeriesJson]:
    """Curves, in columns: one per (name, context, role, rank), in the order in which they come."""
    curves: dict[tuple[object, ...], SeriesJson] = {}
    for one in points:
        point, source = one.point, one.source
        key = (point.name, tuple(sorted(point.context.items())), source.role, source.rank)
        curve = curves.setdefault(
            key,
            {
                "name": point.name,
                "context": dict(point.context),
                "role": source.role,
                "rank": source.rank,
                "steps": [],
                "values": [],
                "times": [],
                "attempts": [],
            },
        )
        curve["steps"].append(point.step)
        curve["values"].append(number(point.value))
        curve["times"].append(rfc3339(point.time_ms))
        curve["attempts"].append(source.attempt)
    return list(curves.values())


def progress_json(job: Job, summary: Summary) -> ProgressJson:
    return {
        "status": job.status.value,
        "progress": summary.progress,
        "eta_ms": summary.eta_ms,
        "lines": summary.lines,
        "points": summary.points,
        "latest": {name: point_json(point) for name, point in summary.latest.items()},
    }


def artifact_json(one: Artifact) -> ArtifactJson:
    return {"path": one.path, "size": one.meta.size, "modified": rfc3339(one.meta.modified), "etag": one.meta.etag}


def waiting_json(job: Job, waiting: Waiting | None) -> WaitingJson:
    out: WaitingJson = {
        "id": job.id,
        "name": str(job.spec.get("name", "")),
        "tenant": job.tenant,
        "user": job.user,
        "created": rfc3339(job.created),
        "pending_reason": waiting.pending_reason if waiting else job.state.pending_reason,
        "message": waiting.message if waiting else "",
    }
    if waiting is not None:
        out["position"] = waiting.position
    return out


def cluster_json(state: ClusterState) -> ClusterJson:
    out: ClusterJson = {"jobs": {status.value: count for status, count in state.jobs.items()}}
    if state.used is not None:
        out["used"] = size_json(state.used)
    if state.nodes is not None and state.isolation is not None:
        out["nodes"] = [
            {
                "name": node.name,
                "cpus": node.cpus,
                "memory": node.memory,
                "gpus": float(node.gpus),
                "gpu_type": node.gpu_type,
                "ready": node.ready,
            }
            for node in state.nodes
        ]
        out["isolation"] = state.isolation
        out["total"] = total_json(
            {"cpus": node["cpus"], "memory": node["memory"], "gpus": node["gpus"]}
            for node in out["nodes"]
            if node["ready"]
        )
    return out


def key_json(key: ApiKey) -> KeyJson:
    return {
        "id": key.id,
        "name": key.name,
        "user": key.user,
        "tenant": key.tenant,
        "scope": key.scope,
        "created": rfc3339(key.created),
        "revoked": rfc3339_or_none(key.revoked),
    }


def quarantine_json(found: Quarantined) -> QuarantineJson:
    return {
        "held": [
            {
                "service": service, "kind": one.kind, "place": one.place, "reason": one.reason,
                "since": rfc3339(one.since), "job": one.job, "advice": one.advice,
            }
            for service, one in found.held
        ],
        "silent": list(found.silent),
    }  # fmt: skip
