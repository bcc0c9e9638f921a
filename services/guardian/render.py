"""The plan of an attempt, rendered from the job document: pure, and the same for every cluster."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from services.core.domain.codec import dump
from services.core.domain.errors import InvalidRequest
from services.core.domain.job import Job
from services.core.domain.learner import learner_name
from services.core.domain.plan import AttemptPlan, Input, LearnerPlan, Output
from services.core.domain.s3_data import s3_location
from services.core.domain.sizes import Size
from services.core.domain.spec import DataStore, JobSpec
from services.core.domain.tokens import LearnerIdentity
from services.core.frameworks import find
from services.core.strategies.registry import with_variables

MintToken = Callable[[LearnerIdentity], str]
"""Makes a learner's token. Equal identities get equal tokens."""
_NOT_OF_THE_RUN: Final = (
    "job",
    "tenant",
    "attempt",
    "term",
    "trace",
    "checkpoint_attempts",
    "variables",
    "schema",
    "priority",
    "placement",
    "image_pull_secret",
)
"""Fields of a plan that differ between equal runs. ``variables`` name the job and follow from the other fields.
Credentials change nothing of what an image is."""
_NOT_OF_THE_LEARNER: Final = ("token", "node", "variables", "run")


def render(job: Job, spec: JobSpec, *, term: int, mint: MintToken, sizes: Mapping[str, Size]) -> AttemptPlan:
    """Everything the cluster needs for the current attempt, with the learners' environment.

    InvalidRequest if the platform does not have the framework or the distribution that the spec names.
    """
    plan = AttemptPlan(
        job=job.id,
        tenant=job.tenant,
        attempt=job.attempt.number,
        term=term,
        learners=tuple(_learners(job, spec, mint, sizes)),
        distribution=spec.distribution,
        framework=_framework(spec),
        image=spec.image or "",
        image_pull_secret=spec.image_pull_secret or "",
        priority=spec.priority,
        placement=spec.placement,
        code_digest=job.code_digest,
        inputs=_inputs(spec),
        output=_output(spec),
        grace=spec.grace,
        store_timeout=spec.store_timeout,
        checkpoint_keep=spec.checkpoint.keep,
        metrics_files=tuple(source.path for source in spec.metrics if source.path),
        checkpoint_attempts=tuple(range(job.attempt.number - 1, 0, -1)),
        trace=job.trace,
        checkpoint_path=spec.checkpoint.path or "",
    )
    return with_variables(plan)


def _learners(job: Job, spec: JobSpec, mint: MintToken, sizes: Mapping[str, Size]) -> Iterator[LearnerPlan]:
    """All learners. Ranks are global and follow the order of the roles in the spec."""
    rank = 0
    for role_name, role in spec.roles.items():
        size = spec.role_resources(role_name, sizes)
        for index in range(role.count):
            name = learner_name(role_name, index)
            identity = LearnerIdentity(job.id, job.tenant, job.attempt.number, role_name, rank, name)
            yield LearnerPlan(
                name=name,
                role=role_name,
                rank=rank,
                command=role.command or spec.command,
                cpus=size.cpus,
                memory=size.memory,
                gpus=size.gpus,
                node=job.attempt.placement.get(name, ""),
                token=mint(identity),
                env=dict(spec.env),
                gpu_type=(role.gpu_type or spec.resources.gpu_type or "") if size.gpus else "",
                shm=spec.resources.shm or 0,
                devices=dict(size.devices),
                run=job.attempt.run_of(name),
            )
            rank += 1


def _framework(spec: JobSpec) -> str:
    if spec.framework is None:
        return ""
    entry = find(spec.framework.name, spec.framework.version)
    if entry is None:  # it was present when the job was submitted; the platform has been changed since
        wanted = f"{spec.framework.name} {spec.framework.version}".strip()
        raise InvalidRequest(f"the platform has no framework {wanted} any more; see `weft frameworks`")
    return f"{entry.name}-{entry.version}"


def _inputs(spec: JobSpec) -> tuple[Input, ...]:
    stores = {store.id: store for store in spec.data_stores}
    return tuple(
        Input(
            mount=data.mount or data.store,
            type=stores[data.store].type,
            location=_location(stores[data.store]),
            path=data.path,
            secret=stores[data.store].secret or "",
        )
        for data in spec.inputs
    )


def _output(spec: JobSpec) -> Output | None:
    if spec.outputs is None:
        return None
    (store,) = (store for store in spec.data_stores if store.id == spec.outputs.store)
    parts = [part for part in spec.outputs.path.split("/") if part not in {"", "."}]
    return Output(type=store.type, location=_location(store), path="/".join(parts))


def _location(store: DataStore) -> str:
    if store.type == "s3":
        return s3_location(store.url or "", store.endpoint, store.region)
    return store.path or store.url or store.claim or ""


def digest(plan: AttemptPlan) -> str:
    """``sha256:`` and the digest of what is run. Equal runs of other jobs, attempts, nodes and Guardians have the same.

    Contains no secret.
    """
    document = {name: value for name, value in dump(plan).items() if name not in _NOT_OF_THE_RUN}
    for learner in document["learners"]:
        for name in _NOT_OF_THE_LEARNER:
            del learner[name]
    return "sha256:" + hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
