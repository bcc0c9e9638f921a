"""The SDK reads a spec as the platform does, and has the line of each field."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.errors import InvalidSpec as PlatformInvalidSpec
from services.core.formats.spec_text import parse_spec_text
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


scalars = st.text("0123456789.-+exonNaulftrsy~:# 'é\"", max_size=8)


@given(st.lists(scalars, min_size=1, max_size=4))
def test_sdk_and_platform_read_the_same_value(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    text = "".join(f"k{place}: {word}\n" for place, word in enumerate(words))
    path = written(tmp_path_factory.mktemp("spec"), text)
    try:
        expected: Any = parse_spec_text(text.encode())
    except PlatformInvalidSpec:
        expected = None
    try:
        document: Any = read_spec(path).document
    except InvalidSpec:
        document = None
    assert json.dumps(document) == json.dumps(expected)


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
        ("a: &x [*x]\n", "unconstructable recursive|nested deeper|undefined alias"),
        ("a: " + "[" * 40 + "]" * 40, "nested deeper"),
        ('a: "\\ud800"\n', "JSON cannot say this"),
    ],
)
def test_invalid_text_is_one_error_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        read_spec(written(tmp_path, text))
    assert any(part in refused.value.message for part in says.split("|")), refused.value.message
    assert "weft.yaml" in refused.value.message


def test_json_with_tabs_is_read_too(tmp_path: Path) -> None:
    file = read_spec(written(tmp_path, '{\n\t"name": "x",\n\t"learners": 2\n}', "weft.json"))
    assert file.document == {"name": "x", "learners": 2}


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
    assert [error.message for error in several.errors] == ["line 3: m", "n"]


def test_committed_schema_matches_the_model() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/schema.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
