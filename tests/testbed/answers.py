"""Checks what a command printed against what docs/command-output.md says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from services.api.answers import json_schemas
from services.api.rest.app import create_routes
from weft._cli.answers import Fields, by_command, types

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_PLAIN: Mapping[str, type | tuple[type, ...]] = {
    "text": str,
    "integer": int,
    "number": (int, float),
    "flag": bool,
    "object": dict,
}


@cache
def api_types() -> dict[str, Any]:
    create_routes()
    return json_schemas("{name}")


def check_answer(command: str, answer: object) -> None:
    """Fails where the answer of the command has a field that is missing, unknown or of another type."""
    expected = by_command()[command]
    if isinstance(expected, str):
        _check(answer, expected.removeprefix("stream of "), command)
    else:
        _check_fields(answer, expected, command)


def check_type(kind: str, value: object) -> None:
    """Fails where the value is not of this type."""
    _check(value, kind, kind)


def _check_fields(value: Any, fields: Fields, where: str) -> None:
    assert isinstance(value, dict), (where, value)
    names = {name.removesuffix("?") for name in fields}
    assert set(value) <= names, (where, set(value) - names)
    for name, (kind, _) in fields.items():
        if name.endswith("?") and name[:-1] not in value:
            continue
        assert name.removesuffix("?") in value, (where, name)
        _check(value[name.removesuffix("?")], kind, f"{where}.{name}")


def _check(value: Any, kind: str, where: str) -> None:
    if kind.endswith(" or null"):
        if value is not None:
            _check(value, kind.removesuffix(" or null"), where)
    elif kind.startswith("list of "):
        assert isinstance(value, list), (where, value)
        for item in value:
            _check(item, kind.removeprefix("list of "), where)
    elif kind.startswith("map of "):
        assert isinstance(value, dict), (where, value)
        for item in value.values():
            _check(item, kind.removeprefix("map of "), where)
    elif kind == "time":
        assert isinstance(value, str), (where, value)
        assert _TIME.fullmatch(value), (where, value)
    elif kind in _PLAIN:
        assert isinstance(value, _PLAIN[kind]), (where, value)
    elif kind in types():
        _check_fields(value, types()[kind], where)
    else:
        schema = api_types()[kind]
        assert isinstance(value, dict), (where, value)
        assert set(schema["required"]) <= set(value) <= set(schema["properties"]), (where, sorted(value))
        for name, field in schema["properties"].items():
            if field.get("format") == "date-time" and value.get(name) is not None:
                _check(value[name], "time", f"{where}.{name}")
