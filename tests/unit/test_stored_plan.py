"""``plan.json`` of a pod: role templates from which every learner follows, without tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.errors import InvalidRequest
from services.core.domain.plan import AttemptPlan, Input, Part, PartKind
from services.core.domain.spec import MAX_LEARNERS, RUNNABLE_DISTRIBUTIONS
from services.core.formats import stored_plan
from services.core.strategies.registry import with_variables
from tests.documents import a_learner, a_plan

ROLES = (("worker", 2, 2.0), ("ps", 1, 0.0), ("evaluator", 1, 0.5))


def gang(
    distribution: str = "torchrun",
    roles: Sequence[tuple[str, int, float]] = ROLES,
    env: Mapping[str, str] | None = None,
) -> AttemptPlan:
    names = [(role, index, gpus) for role, count, gpus in roles for index in range(count)]
    learners = tuple(
        a_learner(
            f"{role}-{index}",
            rank=rank,
            command=f"train {role}",
            cpus=4,
            memory=2**30,
            gpus=gpus,
            node=f"node-{rank}",
            token=f"secret-of-{rank}",
            env=env or {},
        )
        for rank, (role, index, gpus) in enumerate(names)
    )
    return with_variables(
        a_plan(
            *learners,
            job="j1",
            attempt=3,
            term=7,
            distribution=distribution,
            framework="jax-0.10",
            code_digest="sha256:00",
            inputs=(Input(mount="m", type="http", location="http://h/"),),
            grace=1,
            store_timeout=2,
            checkpoint_keep=3,
            metrics_files=("a.jsonl",),
            checkpoint_attempts=(2, 1),
            trace="00-1",
        )
    )


@pytest.mark.parametrize("distribution", sorted(RUNNABLE_DISTRIBUTIONS))
def test_each_learner_reads_its_own_plan_and_the_names_of_all(distribution: str) -> None:
    plan = gang(distribution, env={"MINE": "ä ${x} 1", "LANG": "C"})
    document = json.loads(stored_plan.write(plan))
    for learner in plan.learners:
        stored = stored_plan.read(document, learner.name)
        own = replace(learner, token="", node="")
        assert (stored.plan, stored.learner) == (replace(plan, learners=(own,)), own)
        assert stored.gang == ("worker-0", "worker-1", "ps-0", "evaluator-0")


@pytest.mark.slow
@given(env=st.dictionaries(st.from_regex(r"[A-Z]{1,3}", fullmatch=True), st.text(st.characters(codec="utf-8"))))
def test_users_text_is_read_as_it_was_written(env: Mapping[str, str]) -> None:
    plan = gang(env=env)
    assert stored_plan.read(json.loads(stored_plan.write(plan)), "worker-1").learner.env == env


def test_document_has_no_token_and_no_node() -> None:
    text = stored_plan.write(gang())
    assert "secret-of" not in text
    assert "node-" not in text


@pytest.mark.slow
def test_document_of_the_largest_gang_is_as_small_as_that_of_two_learners() -> None:
    small = len(stored_plan.write(gang(roles=(("worker", 2, 1),))))
    large = len(stored_plan.write(gang(roles=(("worker", MAX_LEARNERS, 1),))))
    assert large - small < 100


def test_plan_with_too_much_text_is_refused_with_its_size() -> None:
    with pytest.raises(InvalidRequest, match=r"take 30\d{4} bytes"):
        stored_plan.write(gang(env={f"V{number}": "x" * 60_000 for number in range(5)}))


def test_variables_that_follow_from_no_rank_are_refused_by_name() -> None:
    plan = gang()
    odd = tuple(
        replace(learner, variables={**learner.variables, "ODD": (Part(PartKind.TEXT, text),)})
        for learner, text in zip(plan.learners, ("a", "b", "c", "d"), strict=True)
    )
    with pytest.raises(InvalidRequest, match="ODD differs"):
        stored_plan.write(replace(plan, learners=odd))


def test_learners_of_a_role_with_different_commands_are_refused() -> None:
    plan = gang()
    with pytest.raises(InvalidRequest, match="worker-1 differs"):
        stored_plan.write(
            replace(plan, learners=(plan.learners[0], replace(plan.learners[1], command="x"), *plan.learners[2:]))
        )


def test_plan_of_a_newer_schema_and_an_unknown_learner_are_refused() -> None:
    document = json.loads(stored_plan.write(gang()))
    with pytest.raises(ValueError, match="schema 2"):
        stored_plan.read({**document, "schema": 2}, "worker-0")
    with pytest.raises(ValueError, match="worker-9"):
        stored_plan.read(document, "worker-9")
