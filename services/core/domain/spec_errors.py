"""What is wrong with a value that a user sent, in plain words: the messages of pydantic name Python's types.

A message says what to write. It repeats at most a short part of the value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import ErrorDetails

from services.core.domain.units import format_bytes

_MESSAGES: Final[Mapping[str, str]] = {
    "invalid_key": "the name of a field is text",
    "missing": "this field is required",
    "string_type": "write text, in quotes if it looks like something else",
    "int_type": "write a whole number",
    "int_parsing": "write a whole number",
    "int_parsing_size": "write a smaller number",
    "int_from_float": "write a whole number",
    "float_type": "write a number",
    "float_parsing": "write a number",
    "finite_number": "write a number that is finite",
    "bool_type": "write true or false",
    "bool_parsing": "write true or false",
    "greater_than": "write more than {gt}",
    "greater_than_equal": "write at least {ge}",
    "less_than": "write less than {lt}",
    "less_than_equal": "write at most {le}",
    "string_too_short": "write at least {min_length} characters",
    "string_too_long": "write at most {max_length} characters",
}
"""Kind of pydantic's error -> what to write."""
_LISTS: Final = frozenset({"tuple_type", "list_type", "set_type", "frozen_set_type"})
_MAPPINGS: Final = frozenset({"dict_type", "model_type", "model_attributes_type", "mapping_type", "dataclass_type"})
_SHOWN: Final = 30
"""Characters of a value that a message repeats."""


def plain_message(detail: ErrorDetails) -> str:
    """What is wrong at ``detail["loc"]``, without the name of the field."""
    kind, context = detail["type"], detail.get("ctx") or {}
    field = str(detail["loc"][-1]) if detail["loc"] else "the spec"
    value = detail.get("input")
    if kind in _LISTS:
        return f"{field} is a list: `{field}: [{_short(value)}]`"
    if kind in _MAPPINGS:
        return f"{field} is a mapping of fields, each on a line of its own below `{field}:`"
    if kind in {"too_short", "too_long"}:
        return _length(kind, context, value)
    if kind in _MESSAGES:
        return _MESSAGES[kind].format(**{name: _number(bound) for name, bound in context.items()})
    return detail["msg"].removeprefix("Value error, ")


def _number(bound: object) -> str:
    if isinstance(bound, int) and bound >= 2**20 and bound % 1024 == 0:
        return format_bytes(bound)  # of a field that is written as a size
    return f"{bound:g}" if isinstance(bound, (int, float)) and abs(bound) < 1e6 else str(bound)


def _length(kind: str, context: Mapping[str, Any], value: object) -> str:
    unit = "character" if isinstance(value, str) else "entry"
    least = kind == "too_short"
    number = context.get("min_length" if least else "max_length", 1)
    plural = unit if number == 1 else "entries" if unit == "entry" else f"{unit}s"
    counted = "one" if number == 1 else str(number)
    return f"write at {'least' if least else 'most'} {counted} {plural}"


def _short(value: object) -> str:
    """A value of YAML as it stands in a list; dots for one that is long or no plain value."""
    if not isinstance(value, (str, int, float)):
        return "..."
    text = value if isinstance(value, str) else json.dumps(value)
    return text if text.isprintable() and len(text) <= _SHOWN else "..."
