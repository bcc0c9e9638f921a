"""What `weft train -h FIELD` and the shell say of the fields of a spec."""

from __future__ import annotations

from typing import Any

import pytest

from services.core.domain.spec import parse_spec
from weft._cli.field_examples import EXAMPLES, example_of
from weft._cli.fields import all_fields, explain_field
from weft.spec_text import read_spec_text

FIELDS = [path for path, _ in all_fields()]


@pytest.mark.parametrize("path", FIELDS)
def test_every_field_has_an_example_that_names_it(path: str) -> None:
    name = path.rpartition(".")[2]
    assert f"{name}:" in example_of(path)
    assert example_of(path).split("\n")[0].strip() in explain_field(path)


@pytest.mark.parametrize("path", EXAMPLES)
def test_every_example_is_part_of_a_valid_spec(path: str) -> None:
    assert path in FIELDS
    spec: dict[str, Any] = {"name": "n", "command": "true", **read_spec_text(EXAMPLES[path]).document}
    for entry in [*spec.get("inputs", ()), *([spec["outputs"]] if "outputs" in spec else ())]:
        spec.setdefault("data_stores", []).append({"id": entry["store"], "type": "local", "path": "/data"})
    parse_spec(spec)
