"""No field of a job spec does nothing: each one has an effect that shows in what the platform makes of the spec, or the
platform refuses the spec and names the field.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from services.core.domain.codec import dump
from services.core.domain.job import Job, admitted, new_job
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.plan import AttemptPlan, LearnerPlan
from services.core.domain.plan import Input as PlannedInput
from services.core.domain.plan import Output as PlannedOutput
from services.core.domain.sizes import SIZES
from services.core.domain.spec import JobSpec, _models_in, dump_spec, parse_spec
from services.core.domain.status import Phase
from services.core.domain.unsupported import unsupported
from services.core.domain.verdict import decide_verdict
from services.guardian.ending import Limits
from services.guardian.render import render
from services.lcm.scheduling.placement import gang_of

SERVICES = Path(__file__).parents[2] / "services"
A_STORE = {"id": "d", "type": "local", "path": "/data"}
AN_S3 = {"id": "d", "type": "s3", "url": "s3://bucket", "secret": "s"}
BASE: dict[str, Any] = {
    "name": "n",
    "command": "true",
    "roles": {"ps": {"count": 1}, "worker": {"count": 2, "on_failure": "ignore"}},
    "data_stores": [A_STORE],
    "inputs": [{"store": "d", "path": "a", "mount": "m"}],
    "metrics": [{"type": "jsonl", "path": "m.jsonl"}],
    "framework": {"name": "numpy"},
    "retries": {"max": 2},
}

# Field -> the change of a spec in which its effect shows.
EFFECT: dict[str, dict[str, Any]] = {
    "name": {"name": "other"},
    "description": {"description": "why"},
    "framework.name": {"framework": {"name": "jax"}},
    "framework.version": {"framework": {"name": "python", "version": "3.11"}},
    "command": {"command": "false"},
    "code": {"code": "src"},
    "roles.count": {"roles": {"ps": {"count": 2}, "worker": BASE["roles"]["worker"]}},
    "roles.cpus": {"roles": {"ps": {"count": 1, "cpus": 3}, "worker": BASE["roles"]["worker"]}},
    "roles.memory": {"roles": {"ps": {"count": 1, "memory": "3GB"}, "worker": BASE["roles"]["worker"]}},
    "roles.gpus": {"roles": {"ps": {"count": 1, "gpus": 1}, "worker": BASE["roles"]["worker"]}},
    "roles.gpu_type": {"roles": {"ps": {"count": 1, "gpu_type": "h100"}, "worker": BASE["roles"]["worker"]}},
    "roles.command": {"roles": {"ps": {"count": 1, "command": "x"}, "worker": BASE["roles"]["worker"]}},
    "roles.on_failure": {"roles": {"ps": {"count": 1}, "worker": {"count": 2}}},
    "roles.min": {"roles": {"ps": {"count": 1}, "worker": {"count": 2, "min": 2, "on_failure": "ignore"}}},
    "roles.decides": {"roles": {"ps": {"count": 1, "decides": True}, "worker": BASE["roles"]["worker"]}},
    "distribution": {"distribution": "torchrun"},
    "resources.size": {"resources": {"size": "k80"}},
    "resources.cpus": {"resources": {"cpus": 3}},
    "resources.memory": {"resources": {"memory": "3GB"}},
    "resources.gpus": {"resources": {"gpus": 1}},
    "resources.gpu_type": {"resources": {"gpu_type": "h100"}},
    "placement": {"placement": "spread"},
    "data_stores.id": {"data_stores": [{**A_STORE, "id": "e"}], "inputs": [{"store": "e"}]},
    "data_stores.type": {"data_stores": [{**A_STORE, "type": "http", "url": "http://h/x"}]},
    "data_stores.path": {"data_stores": [{**A_STORE, "path": "/other"}]},
    "data_stores.url": {"data_stores": [{"id": "d", "type": "http", "url": "http://h/y"}]},
    "data_stores.endpoint": {"data_stores": [{**AN_S3, "endpoint": "http://h:1"}]},
    "data_stores.region": {"data_stores": [{**AN_S3, "region": "eu-west-1"}]},
    "data_stores.secret": {"data_stores": [{**AN_S3, "secret": "other"}]},
    "inputs.store": {"data_stores": [A_STORE, {**A_STORE, "id": "e", "path": "/e"}], "inputs": [{"store": "e"}]},
    "inputs.path": {"inputs": [{"store": "d", "path": "b", "mount": "m"}]},
    "inputs.mount": {"inputs": [{"store": "d", "path": "a", "mount": "n"}]},
    "metrics.type": {"metrics": []},
    "metrics.path": {"metrics": [{"type": "jsonl", "path": "other.jsonl"}]},
    "checkpoint.keep": {"checkpoint": {"keep": 7}},
    "checkpoint.path": {"checkpoint": {"path": "ckpt"}},
    "retries.max": {"retries": {"max": 0}},
    "retries.backoff": {"retries": {"max": 2, "backoff": "1s"}},
    "retries.on": {"retries": {"max": 2, "on": ["exit:9"]}},
    "max_runtime": {"max_runtime": "1h"},
    "max_pending": {"max_pending": "1h"},
    "grace": {"grace": "1s"},
    "store_timeout": {"store_timeout": "1m"},
    "env": {"env": {"A": "b"}},
    "tags": {"tags": ["t"]},
}
# Field -> a spec that the platform refuses because of it.
REFUSED: dict[str, dict[str, Any]] = {
    "image": {"image": "img:1", "framework": None},
    "image_pull_secret": {"image": "img:1", "framework": None, "image_pull_secret": "s"},
    "resources.devices": {"resources": {"devices": {"rdma/hca": 1}}},
    "roles.devices": {"roles": {"worker": {"count": 1, "devices": {"rdma/hca": 1}}}},
    "resources.shm": {"resources": {"shm": "1GB"}},
    "resources.disk": {"resources": {"disk": "1GB"}},
    "data_stores.claim": {"data_stores": [{"id": "d", "type": "pvc", "claim": "c"}]},
    "outputs.store": {"outputs": {"store": "d"}},
    "outputs.path": {"outputs": {"store": "d", "path": "x"}},
    "stall_timeout": {"stall_timeout": "1m"},
    "priority": {"priority": "high"},
    "preemptible": {"preemptible": True},
    "elastic.min": {"elastic": {"min": 1, "max": 2}},
    "elastic.max": {"elastic": {"min": 1, "max": 3}},
    "secrets": {"secrets": ["s"]},
    "notify": {"notify": ["w"]},
}


def leaves(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """The names of all fields that hold a value, with those around them: ``retries.max``."""
    for name, field in model.model_fields.items():
        inner = next(_models_in(field.annotation), None)
        if inner is None:
            yield f"{above}{name}"
        else:
            yield from leaves(inner, f"{above}{name}.")


def job_of(spec: JobSpec) -> Job:
    job = new_job(
        job_id="j1",
        tenant="t",
        user="u",
        spec=dump_spec(spec),
        code_digest="",
        idem="j1",
        idem_digest="",
        trace="",
        now=1,
    )
    return admitted(job, placement={}, dispatcher_term=1, now=2)


def verdicts(spec: JobSpec) -> list[object]:
    """The ends of an attempt in which all learners of a role succeeded, failed or still run."""
    job = job_of(spec)
    learners = [(name, index) for name, role in spec.roles.items() for index in range(role.count)]

    def reports(codes: dict[str, int | None]) -> dict[str, LearnerStatus]:
        ends = {role: None if code is None else Exit(time=3, code=code) for role, code in codes.items()}
        return {
            f"{role}-{index}": LearnerStatus(
                name=f"{role}-{index}", role=role, rank=rank, attempt=1, seq=1, phase=Phase.PROCESSING, exit=ends[role]
            )
            for rank, (role, index) in enumerate(learners)
        }

    cases: list[dict[str, int | None]] = [
        {"ps": ps, "worker": worker} for ps in (0, 7, None) for worker in (0, 7, None)
    ]
    return [decide_verdict(job, spec, reports(codes), now=4) for codes in cases]


def made_of(document: dict[str, Any]) -> list[object]:
    """All that the platform derives from a spec: the plan of an attempt, its place, its limits and its end."""
    spec = parse_spec(document)
    assert unsupported(spec) == ()
    plan = render(job_of(spec), spec, term=1, mint=lambda identity: identity.name, sizes=SIZES)
    shown = (spec.name, spec.description, spec.tags, spec.code)  # `weft show`; the CLI uploads the code
    return [dump(plan), gang_of(spec, SIZES), Limits.of(spec), verdicts(spec), shown, spec.max_runtime]


def test_every_field_of_a_spec_is_known_to_this_test() -> None:
    assert set(leaves(JobSpec)) == set(EFFECT) | set(REFUSED)
    assert not set(EFFECT) & set(REFUSED)


@pytest.mark.parametrize("field", EFFECT)
def test_an_implemented_field_has_an_effect(field: str) -> None:
    changed = EFFECT[field]
    base = {**BASE, "data_stores": [AN_S3]} if changed.get("data_stores", [{}])[0].get("type") == "s3" else BASE
    assert made_of({**base, **changed}) != made_of(base)


@pytest.mark.parametrize("field", REFUSED)
def test_a_field_that_does_nothing_yet_is_refused_by_name(field: str) -> None:
    changed = {key: value for key, value in {**BASE, **REFUSED[field]}.items() if value is not None}
    errors = {error.pointer.split("/")[1]: error.message for error in unsupported(parse_spec(changed))}
    assert "not available on this platform yet" in errors[field.split(".", maxsplit=1)[0]]


def test_pods_have_the_devices_and_the_place_of_results_of_their_spec() -> None:
    spec = parse_spec(
        {
            "name": "n",
            "command": "true",
            "resources": {"devices": {"rdma/hca": 2}},
            "data_stores": [{"id": "d", "type": "pvc", "claim": "kept"}],
            "outputs": {"store": "d", "path": "./team//results/"},
        }
    )
    assert unsupported(spec, "kubernetes") == ()
    plan = render(job_of(spec), spec, term=1, mint=lambda identity: identity.name, sizes=SIZES)
    assert plan.output == PlannedOutput(type="pvc", location="kept", path="team/results")
    assert plan.learners[0].devices == {"rdma/hca": 2}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AttemptPlan, LearnerPlan, PlannedInput, PlannedOutput])
def test_every_field_of_a_plan_is_read_where_learners_run(kind: type) -> None:
    """A field that is rendered and never read would hide a field of the spec that does nothing."""
    read = {
        node.attr
        for folder in ("node", "helper", "core/adapters", "core/strategies")
        for path in (SERVICES / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    unread = {field.name for field in fields(kind)} - read
    # The Guardian itself uses the first; the others are of no spec.
    assert unread - {"grace", "schema", "extra", "trace"} == set()
