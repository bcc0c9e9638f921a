"""The plan of an attempt, rendered from the job document: pure, the same for every cluster."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from services.core.domain.codec import dump
from services.core.domain.job import Job
from services.core.domain.learner import learner_name
from services.core.domain.plan import AttemptPlan, Input, LearnerPlan
from services.core.domain.sizes import Size
from services.core.domain.spec import JobSpec
from services.core.domain.tokens import LearnerIdentity, mint
from services.core.frameworks import find


def render(job: Job, spec: JobSpec, *, term: int, secret: bytes, sizes: Mapping[str, Size]) -> AttemptPlan:
    """Everything the cluster needs for the current attempt. Ranks run through the roles in the spec's order."""
    learners: list[LearnerPlan] = []
    for role_name, role in spec.roles.items():
        size = spec.role_resources(role_name, sizes)
        for index in range(role.count):
            name, rank = learner_name(role_name, index), len(learners)
            identity = LearnerIdentity(job.id, job.tenant, job.attempt.number, role_name, rank, name)
            learners.append(
                LearnerPlan(
                    name=name,
                    role=role_name,
                    rank=rank,
                    command=role.command or spec.command,
                    cpus=size.cpus,
                    memory=size.memory,
                    gpus=size.gpus,
                    node=job.attempt.placement.get(name, ""),
                    token=mint(secret, identity),
                    env=dict(spec.env),
                )  # fmt: skip
            )
    entry = find(spec.framework.name, spec.framework.version) if spec.framework else None
    stores = {store.id: store for store in spec.data_stores}
    return AttemptPlan(
        job=job.id, tenant=job.tenant, attempt=job.attempt.number, term=term, learners=tuple(learners),
        distribution=spec.distribution, framework=f"{entry.name}-{entry.version}" if entry else "",
        code_digest=job.code_digest,
        inputs=tuple(
            Input(
                mount=one.mount or one.store, type=stores[one.store].type,
                location=stores[one.store].path or stores[one.store].url or "", path=one.path,
            )
            for one in spec.inputs
        ),
        grace=spec.grace, store_timeout=spec.store_timeout, checkpoint_keep=spec.checkpoint.keep,
        metrics_files=tuple(source.path for source in spec.metrics if source.path),
        checkpoint_attempts=tuple(range(job.attempt.number - 1, 0, -1)), trace=job.trace,
    )  # fmt: skip


def digest(plan: AttemptPlan) -> str:
    """Of what the plan makes of the job, without secrets and without the fence: names a repeatable run."""
    document = dump(plan)
    document.pop("term")
    for learner in document["learners"]:
        learner.pop("token")
    return "sha256:" + hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
