"""Specs as fields: differences, copies with some fields changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.api.spec_fields import differences, fields_of, shown, with_fields
from services.core.domain.errors import InvalidRequest

SPEC: dict[str, Any] = {
    "name": "digits",
    "env": {"LR": "0.1", "SEED": "1"},
    "roles": {"worker": {"count": 2}},
    "tags": ["a"],
    "outputs": {},
}


def test_fields_are_the_leaves_of_the_spec() -> None:
    assert fields_of(SPEC) == {
        "env.LR": "0.1",
        "env.SEED": "1",
        "name": "digits",
        "outputs": {},
        "roles.worker.count": 2,
        "tags": ["a"],
    }


def test_differences_name_changed_missing_and_new_fields() -> None:
    other = {**SPEC, "env": {"LR": "0.2", "X": "1"}, "tags": ["a", "b"]}
    assert differences(SPEC, other) == [
        ("env.LR", "0.1", "0.2"),
        ("env.SEED", "1", None),
        ("env.X", None, "1"),
        ("tags", ["a"], ["a", "b"]),
    ]
    assert differences(SPEC, dict(SPEC)) == []


def test_a_copy_has_the_changes_and_leaves_the_original() -> None:
    copy = with_fields(SPEC, {"env.SEED": "2", "env.NEW": "x", "env.LR": None, "learners": 4, "checkpoint.path": "ck"})
    assert copy["env"] == {"SEED": "2", "NEW": "x"}
    assert copy["roles"] == {"worker": {"count": 4}}
    assert copy["checkpoint"] == {"path": "ck"}
    assert SPEC["env"] == {"LR": "0.1", "SEED": "1"}
    assert with_fields(SPEC, {"none.at.all": None})["name"] == "digits"


def test_a_path_below_a_text_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        with_fields(SPEC, {"name.first": "x"})


@pytest.mark.parametrize(
    "changes",
    [
        {"a" + ".a" * 5_000: 1},
        {"." * 5_000: 1},
        {"." * 32: None},
        {"roles": {"." * 5_000: {}}, "learners": 2},  # the count of a role of this name
    ],
)
def test_a_clone_with_a_path_of_thousands_of_dots_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="the path of a field has at most 32 parts") as refused:
        json.dumps(with_fields(SPEC, changes))
    assert [error.pointer for error in refused.value.errors] == ["/set"]
    assert len(refused.value.message) < 200


def test_a_clone_with_a_path_of_as_many_parts_as_a_spec_has_levels_is_made() -> None:
    assert json.dumps(with_fields(SPEC, {"b" + ".b" * 31: 1})).count('"b"') == 32


def test_a_clone_with_too_many_changes_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 1000 changed fields"):
        with_fields(SPEC, {f"env.A{number}": "x" for number in range(1_001)})


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), ("x", "x"), (2, "2"), (True, "true"), (["b", 1], '["b", 1]'), ({}, "{}")]
)
def test_values_are_shown_as_text(value: Any, text: str) -> None:
    assert shown(value) == text
