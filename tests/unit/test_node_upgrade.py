"""Plans and learners of earlier versions: ``plan_schema_1.json`` was written by the version before schema 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.core.domain.codec import dump, load
from services.core.domain.errors import InvalidRequest, Unavailable
from services.core.domain.plan import SCHEMA, AttemptPlan
from services.core.runtime.home import Home
from services.core.strategies.registry import with_variables
from services.node.learner import read_learner
from services.node.reservation import Allotment, documents
from services.node.rpc import read_plan

WRITTEN: dict[str, Any] = json.loads(Path(__file__).with_name("plan_schema_1.json").read_text())


def test_a_plan_of_schema_1_gives_the_environment_that_its_own_version_gave() -> None:
    plan = with_variables(read_plan(json.dumps(WRITTEN["plan"]).encode()))
    allotment = Allotment(70_001, 70_001, {"worker-0": (), "worker-1": ()}, {"worker-0": 20_001})
    document = documents(plan, allotment, home=Home(Path("/w")), isolation="process")[1]
    assert dict(document.env) == WRITTEN["learner.json"]["env"]


def test_a_learner_reserved_by_an_earlier_version_is_read_with_the_environment_it_has(tmp_path: Path) -> None:
    folder = tmp_path / "j1" / "1" / "worker-1"
    folder.mkdir(parents=True)
    (folder / "learner.json").write_text(json.dumps(WRITTEN["learner.json"]))
    learner = read_learner(folder)
    assert learner is not None
    assert (dict(learner.document.env), set(learner.document.ports.values())) == (
        WRITTEN["learner.json"]["env"],
        {20_001},
    )
    assert learner.document.plan == load(AttemptPlan, WRITTEN["learner.json"]["plan"])


def test_a_plan_of_a_newer_version_waits_for_the_upgrade_of_the_agent() -> None:
    newer = {**dump(with_variables(load(AttemptPlan, WRITTEN["plan"]))), "schema": SCHEMA + 1, "learners": "unknown"}
    with pytest.raises(Unavailable, match="finish the upgrade"):
        read_plan(json.dumps(newer).encode())


@pytest.mark.parametrize("content", ["", "[]", "{}", "null", '{"schema": "x"}', "[" * 100_000])
def test_a_plan_that_cannot_be_read_is_refused(content: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_plan(content.encode())
