"""Conversion of dataclasses to JSON documents and back."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.codec import dump, load
from services.core.domain.document import MAX_TIME_MS, held_placement, read_job
from services.core.domain.errors import Conflict, Quarantined
from services.core.domain.job import SCHEMA, AppliedKey, Job, admitted
from services.core.domain.learner import LearnerStatus
from services.core.domain.plan import AttemptPlan, Input
from services.core.domain.status import Phase, Status
from tests.documents import NOW, a_job, a_learner, a_plan

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text(max_size=8), JSON, max_size=3)


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Without ``extra``: unknown keys are dropped."""

    number: int
    share: float = 0.0
    flag: bool = False
    colour: Colour | None = None
    anything: Any = None
    several: tuple[int, ...] = ()
    by_name: Mapping[str, int] = field(default_factory=dict)
    of_names: dict[str, float] = field(default_factory=dict)


def test_fields_of_every_type_survive_a_round_trip() -> None:
    whole = Plain(
        number=1,
        share=2.0,
        flag=True,
        colour=Colour.RED,
        anything=[{"x": None}],
        several=(1, 2),
        by_name={"a": 1},
        of_names={"b": 0.5},
    )
    written = json.loads(json.dumps(dump(whole)))
    assert written["colour"] == "red"
    assert load(Plain, written) == whole
    assert load(Plain, {"number": 1, "share": 3, "colour": None, "new": 1}) == Plain(number=1, share=3.0)


WRONG_FIELDS: list[dict[str, Any]] = [
    {"number": "1"},
    {"number": None},
    {"number": True},
    {"number": 1.5},
    {"number": 2**63},
    {"share": "x"},
    {"share": True},
    {"share": 10**400},
    {"flag": 1},
    {"colour": "blue"},
    {"several": 1},
    {"several": "12"},
    {"several": {}},
    {"several": ["x"]},
    {"by_name": []},
    {"by_name": {"a": "x"}},
    {"by_name": None},
]


@pytest.mark.parametrize("wrong", [[], None, "x", 7, {}, *({"number": 1, **field} for field in WRONG_FIELDS)], ids=repr)
def test_a_value_of_the_wrong_type_raises_type_or_value_error(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        load(Plain, wrong)


@pytest.mark.slow
@given(OBJECTS, OBJECTS, OBJECTS)
def test_unknown_keys_survive_a_round_trip_at_every_depth(
    top: dict[str, Any], state: dict[str, Any], event: dict[str, Any]
) -> None:
    document = dump(a_job())
    document = {**top, **document}
    document["state"] = {**state, **document["state"]}
    document["history_tail"] = [{**event, **document["history_tail"][0]}]
    assert dump(load(Job, json.loads(json.dumps(document)))) == document


@given(st.sampled_from([Plain, Job, LearnerStatus, AttemptPlan]), JSON)
def test_loading_any_json_raises_type_and_value_errors_only(kind: type[Any], document: Any) -> None:
    with contextlib.suppress(TypeError, ValueError):
        load(kind, document)


@given(st.dictionaries(st.sampled_from(sorted(dump(a_job()))), JSON, min_size=1, max_size=3))
def test_reading_a_damaged_document_returns_the_job_or_raises_conflict(damage: dict[str, Any]) -> None:
    job = a_job()
    with contextlib.suppress(Conflict):
        assert read_job(job.id, {**dump(job), **damage}).id == job.id


def test_an_unreadable_document_is_refused_with_its_reason() -> None:
    job = a_job()
    whole = dump(job)
    assert read_job(job.id, whole) == job
    assert read_job(job.id, {key: value for key, value in whole.items() if key != "schema"}) == job
    with pytest.raises(Conflict, match="finish the upgrade"):
        read_job(job.id, {"schema": SCHEMA + 1})
    with pytest.raises(Quarantined, match="is a list, not a mapping"):
        read_job(job.id, [])
    with pytest.raises(Quarantined, match="cannot be read: expected str, found int"):
        read_job(job.id, {**whole, "tenant": 1})
    with pytest.raises(Quarantined, match="it is the document of job"):
        read_job("jother", whole)


def test_a_document_with_an_implausible_number_or_time_is_refused() -> None:
    job = a_job()
    for wrong in (replace(job, rev=-1), replace(job, history_seq=2**31 + 1)):
        with pytest.raises(Quarantined, match="negative or implausibly large"):
            read_job(job.id, dump(wrong))
    for wrong in (replace(job, created=-1), replace(job, finished=MAX_TIME_MS + 1)):
        with pytest.raises(Quarantined, match="a time before 1970 or after 9999"):
            read_job(job.id, dump(wrong))


def test_the_placement_of_an_unreadable_document_is_read_where_it_holds_hardware() -> None:
    document = dump(admitted(a_job(), placement={"worker-0": "n1"}, dispatcher_term=1, now=NOW))
    damaged = {**document, "generation": "x"}
    assert held_placement(damaged) == (document["spec"], {"worker-0": "n1"})
    assert held_placement({**damaged, "released": NOW}) is None
    assert held_placement({**damaged, "spec": None}) is None
    assert held_placement({**damaged, "attempt": {**document["attempt"], "placement": []}}) is None
    assert held_placement({**damaged, "attempt": {**document["attempt"], "number": 0}}) is None


def test_the_older_field_name_wishes_is_read_as_applied_keys() -> None:
    job = replace(a_job(), applied_keys=(AppliedKey(key="t/u/k", time=5),))
    older = dump(job)
    older["wishes"] = older.pop("applied_keys")
    assert read_job(job.id, older) == job


def test_plan_and_learner_status_survive_a_round_trip() -> None:
    learner = a_learner(memory=5, gpus=0.5, env={"A": "b"})
    plan = a_plan(
        learner,
        term=2,
        inputs=(Input(mount="m", type="http", location="http://x/"),),
        grace=1,
        store_timeout=2,
        checkpoint_keep=3,
        checkpoint_attempts=(2, 1),
    )
    assert load(AttemptPlan, json.loads(json.dumps(dump(plan)))) == plan
    status = LearnerStatus(
        name="worker-0", role="worker", rank=0, attempt=1, seq=3, phase=Phase.READY, times={"READY": 5}
    )
    assert load(LearnerStatus, json.loads(json.dumps(dump(status)))) == status
    assert dump(status)["phase"] == "READY"
    assert dump({Status.QUEUED: 1}) == {"QUEUED": 1}
