"""A job's spec as fields: ``roles.worker.count`` -> 4. For comparisons, groups, and copies with some fields changed.

A field is a leaf: a value that is no mapping, or an empty one. Lists are single values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from services.core.domain.errors import FieldError, InvalidRequest

_MOST_CHANGES: Final = 1_000
_MOST_PARTS: Final = 32
"""Of a path: as many as a spec has levels."""
_SHOWN: Final = 60
"""Characters of a path that a message repeats."""


def fields_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted path -> value, in order of the paths."""
    fields: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, Mapping) and value:
            for name, inner in value.items():
                walk(inner, f"{path}.{name}" if path else str(name))
        elif path:
            fields[path] = value

    walk(spec, "")
    return dict(sorted(fields.items()))


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(path, value of a, value of b) of the fields that differ; None where one has no such field."""
    fields_a, fields_b = fields_of(a), fields_of(b)
    return [
        (path, fields_a.get(path), fields_b.get(path))
        for path in sorted({*fields_a, *fields_b})
        if fields_a.get(path) != fields_b.get(path)
    ]


def with_fields(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the spec with these fields set; None removes a field. ``learners`` sets the count of the only role.

    Raises InvalidRequest for a path below a value that is no mapping, for a path of more than 32 parts, and for more
    than 1000 changes. The copy may be no valid spec.
    """
    if len(changes) > _MOST_CHANGES:
        too_many = f"a copy has at most {_MOST_CHANGES} changed fields"
        raise InvalidRequest(too_many, errors=(FieldError("/set", too_many),))
    copy: dict[str, Any] = json.loads(json.dumps(spec))
    for path, value in changes.items():
        roles = copy.get("roles")
        if path == "learners" and isinstance(roles, dict) and len(roles) == 1:
            path = f"roles.{next(iter(roles))}.count"  # noqa: PLW2901 - the stored form has no `learners`
        if path.count(".") >= _MOST_PARTS:
            begin = path[:_SHOWN]
            too_deep = f"{begin}...: the path of a field has at most {_MOST_PARTS} parts"
            raise InvalidRequest(too_deep, errors=(FieldError("/set", too_deep),))
        *above, name = path.split(".")
        place = copy
        for part in above:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                path, part = path[:_SHOWN], part[:_SHOWN]  # noqa: PLW2901 - the loop ends here
                message = f"{path}: {part} has no fields of its own"
                raise InvalidRequest(message, errors=(FieldError("/set", message),))
            place = inner
        if value is None:
            place.pop(name, None)
        else:
            place[name] = value
    return copy


def shown(value: Any) -> str:
    """A value as text: texts as they are, other values as JSON, a missing one as an empty text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
