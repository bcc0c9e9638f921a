"""Job documents and plans for tests."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from typing import Any

from services.core.domain.ids import make_id
from services.core.domain.job import Job, moved, new_job
from services.core.domain.plan import AttemptPlan, LearnerPlan
from services.core.domain.status import Status
from services.core.runtime.learner_folder import Assignment

NOW = 1_700_000_000_000
"""Unix ms."""
_numbers = itertools.count(1)


def a_job(*, at: int = NOW, spec: dict[str, Any] | None = None, **changes: Any) -> Job:
    """Returns a new job with a unique id and idempotency key; ids rise with each call.

    ``at``: Unix ms of the submission. ``changes``: fields of the job.
    """
    number = next(_numbers)
    job_id = str(changes.pop("id", make_id("j", now_ms=at, random_bits=number)))
    job = new_job(
        job_id=job_id,
        tenant="acme",
        user="ada",
        spec={"name": "digits", "command": "python train.py"} if spec is None else spec,
        code_digest="",
        idem=f"acme/ada/{job_id}",
        idem_digest="",
        trace="",
        now=at,
    )
    return replace(job, **changes)


def at_status(job: Job, *path: Status, now: int = NOW) -> Job:
    """Returns the job after these changes of status."""
    for status in path:
        job = moved(job, status, actor="test", now=now)
    return job


def a_learner(name: str = "worker-0", **fields: Any) -> LearnerPlan:
    """Returns the plan of a learner with the role and the rank of its name, e.g. rank 2 for ``worker-2``.

    ``fields``: those of the plan that differ from a learner of one CPU that runs ``true``.
    """
    role, _, index = name.rpartition("-")
    learner = LearnerPlan(
        name=name,
        role=role,
        rank=int(index),
        command="true",
        cpus=1,
        memory=1,
        gpus=0,
        node="local",
        token="t",
    )
    return replace(learner, **fields)


def a_plan(*learners: LearnerPlan, **fields: Any) -> AttemptPlan:
    """Returns the plan of job ``j``'s first attempt, without code, inputs and times to wait.

    ``fields``: those of the plan that differ.
    """
    plan = AttemptPlan(
        job="j",
        tenant="t",
        attempt=1,
        term=1,
        learners=learners,
        distribution="none",
        framework="",
        code_digest="",
        inputs=(),
        grace=0,
        store_timeout=0,
        checkpoint_keep=1,
    )
    return replace(plan, **fields)


def an_assignment(plan: AttemptPlan | None = None, **fields: Any) -> Assignment:
    """Returns what a helper needs for the plan's first learner, as the user of this process.

    ``plan``: None: of a new learner. ``fields``: those of the assignment that differ.
    """
    plan = plan or a_plan(a_learner())
    assignment = Assignment(
        plan=plan,
        learner=plan.learners[0],
        uid=os.geteuid(),
        gid=os.getegid(),
        addresses_file="",
        objects="",
        cache="",
    )
    return replace(assignment, **fields)
