"""The plan of an attempt, rendered from the job document: pure, the same for every cluster."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Final

from services.core.domain.codec import dump
from services.core.domain.errors import InvalidRequest
from services.core.domain.job import Job
from services.core.domain.learner import learner_name
from services.core.domain.plan import AttemptPlan, Input, LearnerPlan
from services.core.domain.sizes import Size
from services.core.domain.spec import JobSpec
from services.core.domain.tokens import LearnerIdentity, mint
from services.core.frameworks import find

_NOT_OF_THE_RUN: Final = ("job", "tenant", "attempt", "term", "trace", "checkpoint_attempts")
_NOT_OF_THE_LEARNER: Final = ("token", "node")


def render(job: Job, spec: JobSpec, *, term: int, secret: bytes, sizes: Mapping[str, Size]) -> AttemptPlan:
    """Everything the cluster needs for the current attempt. InvalidRequest where the platform lacks what it names."""
    return AttemptPlan(
        job=job.id, tenant=job.tenant, attempt=job.attempt.number, term=term,
        learners=tuple(_learners(job, spec, secret, sizes)), distribution=spec.distribution,
        framework=_framework(spec), code_digest=job.code_digest, inputs=_inputs(spec), grace=spec.grace,
        store_timeout=spec.store_timeout, checkpoint_keep=spec.checkpoint.keep,
        metrics_files=tuple(source.path for source in spec.metrics if source.path),
        checkpoint_attempts=tuple(range(job.attempt.number - 1, 0, -1)), trace=job.trace,
    )  # fmt: skip


def _learners(job: Job, spec: JobSpec, secret: bytes, sizes: Mapping[str, Size]) -> Iterator[LearnerPlan]:
    """Ranks run through the roles in the spec's order."""
    rank = 0
    for role_name, role in spec.roles.items():
        size = spec.role_resources(role_name, sizes)
        for index in range(role.count):
            name = learner_name(role_name, index)
            identity = LearnerIdentity(job.id, job.tenant, job.attempt.number, role_name, rank, name)
            yield LearnerPlan(
                name=name, role=role_name, rank=rank, command=role.command or spec.command, cpus=size.cpus,
                memory=size.memory, gpus=size.gpus, node=job.attempt.placement.get(name, ""),
                token=mint(secret, identity), env=dict(spec.env),
            )  # fmt: skip
            rank += 1


def _framework(spec: JobSpec) -> str:
    if spec.framework is None:
        return ""
    entry = find(spec.framework.name, spec.framework.version)
    if entry is None:  # it was there when the job was submitted: the platform has changed since
        wanted = f"{spec.framework.name} {spec.framework.version}".strip()
        raise InvalidRequest(f"the platform has no framework {wanted} any more; see `weft frameworks`")
    return f"{entry.name}-{entry.version}"


def _inputs(spec: JobSpec) -> tuple[Input, ...]:
    stores = {store.id: store for store in spec.data_stores}
    return tuple(
        Input(
            mount=one.mount or one.store, type=stores[one.store].type,
            location=stores[one.store].path or stores[one.store].url or "", path=one.path,
        )
        for one in spec.inputs
    )  # fmt: skip


def digest(plan: AttemptPlan) -> str:
    """Of what runs, whoever runs it, where and as which attempt: equal digests, equal runs. Knows no secret."""
    document = {name: value for name, value in dump(plan).items() if name not in _NOT_OF_THE_RUN}
    for learner in document["learners"]:
        for name in _NOT_OF_THE_LEARNER:
            del learner[name]
    return "sha256:" + hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
