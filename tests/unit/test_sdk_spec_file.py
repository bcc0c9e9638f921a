"""The SDK reads a spec with the platform's reader, and has the line of each field."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weft import FieldError, InvalidSpec, NotFound
from weft._cli.fields import located
from weft._spec_file import find_spec, read_spec, set_field

ROOT = Path(__file__).parents[2]
SPEC = """\
name: digits
retries:
  max: 3
  on: [infrastructure]   # a word, not the boolean of YAML 1.1
env:
  a/b: "1"
inputs:
  - {store: d}
  - store: e
    mount: x
"""


def written(folder: Path, text: str, name: str = "weft.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_every_field_has_its_line_number(tmp_path: Path) -> None:
    file = read_spec(written(tmp_path, SPEC))
    assert file.document["retries"] == {"max": 3, "on": ["infrastructure"]}
    lines = {"/name": 1, "/retries": 2, "/retries/on": 4, "/retries/on/0": 4, "/env/a~1b": 6, "/inputs/1/mount": 10}
    assert {pointer: file.line_of(pointer) for pointer in lines} == lines
    assert file.line_of("/inputs/1/missing") == 9
    assert file.line_of("/nothing") is None


def test_a_field_below_an_alias_has_the_line_of_the_alias(tmp_path: Path) -> None:
    file = read_spec(written(tmp_path, "env: &e {A: x}\nlabels: *e\n"))
    assert file.document["labels"] == {"A": "x"}
    assert file.line_of("/labels/A") == 2


def test_set_changes_the_named_field_and_not_what_an_alias_repeats_elsewhere(tmp_path: Path) -> None:
    roles = "roles:\n  chief: &role {count: 1, env: &env {A: x}}\n  worker: *role\nenv: *env\n"
    file = read_spec(written(tmp_path, roles))
    file.change("roles.worker.count=4")
    file.change("env.A=y")
    chief = {"count": 1, "env": {"A": "x"}}
    assert file.document == {"roles": {"chief": chief, "worker": {**chief, "count": 4}}, "env": {"A": "y"}}


def test_fields_below_a_very_long_key_cost_no_memory_for_their_lines(tmp_path: Path) -> None:
    fields = "".join(f"    f{number}: 1\n" for number in range(10_000))
    file = read_spec(written(tmp_path, f"env:\n  {'k' * 1000}:\n{fields}name: x\n"))
    assert len(file.lines) == 2
    assert file.line_of("/name") == 10_003


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: [x\n", ":2:1"),
        ("name: x\nname: y\n", ":2:1: the key 'name' is given twice"),
        ("a:\n  b: 1\n  b: 2\n", ":3:3"),
        ("\tname: x\n", ":1:1"),
        ("- a\n", "a job spec is a mapping"),
        ("", "a job spec is a mapping"),
        ("a: !!python/object/apply:os.system [ls]\n", "tags (!) are not allowed"),
        ("a: .inf\n", "a number is finite"),
        ("a: &x [*x]\n", ":1:8: an alias (*) of an anchor (&) that is not complete before it"),
        ("a: " + "[" * 40 + "]" * 40, "nested deeper"),
        ('a: "\\ud800"\n', ":1:7: found invalid Unicode character escape code"),
    ],
)
def test_invalid_text_is_one_error_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        read_spec(written(tmp_path, text))
    assert says in refused.value.message
    assert "weft.yaml" in refused.value.message


def test_fields_of_json_have_line_numbers(tmp_path: Path) -> None:
    file = read_spec(written(tmp_path, '{\n "name": "x",\n "learners": 2\n}', "weft.json"))
    assert file.line_of("/learners") == 3


def test_json_with_tabs_is_read_too(tmp_path: Path) -> None:
    file = read_spec(written(tmp_path, '{\n\t"name": "x",\n\t"learners": 2\n}', "weft.json"))
    assert file.document == {"name": "x", "learners": 2}


def test_a_command_with_a_word_that_is_too_long_for_a_file_name_implies_no_code(tmp_path: Path) -> None:
    """`weft train` ended with "File name too long"."""
    spec = read_spec(written(tmp_path, f"name: x\ncommand: python -c {'x' * 300} train.py\n"))
    assert (spec.code_file, spec.code) == ("", None)
    written(tmp_path, "", "train.py")
    assert (spec.code_file, spec.code) == ("train.py", tmp_path)


def test_missing_spec_error_names_weft_init(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="weft init"):
        find_spec(tmp_path)
    written(tmp_path, SPEC, "manifest.yml")
    assert find_spec(tmp_path).name == "manifest.yml"


@pytest.mark.parametrize(
    ("assignment", "pointer", "value"),
    [
        ("resources.gpus=1", ("resources", "gpus"), 1),
        ("name=a=b", ("name",), "a=b"),
        ("tags=[x, y]", ("tags",), ["x", "y"]),
        ("retries.on=[on]", ("retries", "on"), ["on"]),
        ("inputs.1.mount=z", ("inputs", 1, "mount"), "z"),
        ("env.A=no", ("env", "A"), "no"),
        ("command=", ("command",), None),
    ],
)
def test_a_field_can_be_set_from_the_command_line(
    tmp_path: Path, assignment: str, pointer: tuple[Any, ...], value: Any
) -> None:
    document: Any = read_spec(written(tmp_path, SPEC)).document
    set_field(document, assignment)
    for part in pointer[:-1]:
        document = document[part]
    assert (document.get(pointer[-1]) if isinstance(document, dict) else document[pointer[-1]]) == value


@pytest.mark.parametrize("assignment", ["name", "=1", "a..b=1", "name.x=1", "inputs.7.mount=x", "a=[", "a=!x y"])
def test_invalid_assignment_is_refused(tmp_path: Path, assignment: str) -> None:
    document = read_spec(written(tmp_path, SPEC)).document
    with pytest.raises(InvalidSpec, match="--set"):
        set_field(document, assignment)


def test_wrong_fields_are_shown_with_their_lines(tmp_path: Path) -> None:
    file = read_spec(written(tmp_path, SPEC))
    single = located(InvalidSpec("x", errors=(FieldError("/retries/max", "too many", "at most 2"),)), file)
    assert str(single) == f"{file.path}:3: retries.max: too many; at most 2"
    several = located(InvalidSpec("x", errors=(FieldError("/retries/max", "m"), FieldError("/gone", "n"))), file)
    assert [(error.place, error.message) for error in several.errors] == [
        (f"{file.path}", "n"),
        (f"{file.path}:3", "m"),
    ]


def test_committed_schema_matches_the_model() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/schema.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
