"""Write docs/api-reference.md from the OpenAPI document: every request, parameter, body and answer with its fields.

python scripts/api_reference.py          writes it
python scripts/api_reference.py --check  says whether the committed page is current
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scripts.generated import write_or_check
from services.api.rest.app import create_routes
from services.api.rest.openapi import document

PAGE = Path(__file__).parents[1] / "docs" / "api-reference.md"
HEAD = """# API reference

Every request of the REST API with its parameters, and every answer with its fields. [The API](api.md) explains how they
work together. gRPC has the same fields, in messages of the same names. This page is made by
`python scripts/api_reference.py` from the OpenAPI document.
"""
_REF = "#/components/schemas/"


def type_of(schema: Mapping[str, Any]) -> str:
    """A JSON type in words, e.g. ``list of [Job](#job)``."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REF)
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(type_of(option) for option in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {type_of(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map of {type_of(schema['additionalProperties'])}"
    return {"date-time": "time"}.get(schema.get("format", ""), kind)


def parameter_type(schema: Mapping[str, Any]) -> str:
    """The type of a parameter with its bounds and default. A parameter is never null: it is left out."""
    options = [option for option in schema.get("anyOf", (schema,)) if option.get("type") != "null"]
    words = [" or ".join(type_of(option) for option in options)]
    for option in options:
        if "minimum" in option and "maximum" in option:
            words.append(f"{option['minimum']} to {option['maximum']}")
        elif "minimum" in option:
            words.append(f"at least {option['minimum']}")
    if schema.get("default") not in {None, ""}:
        words.append(f"default {json.dumps(schema['default'])}")
    return ", ".join(words)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(cell.replace("<", "&lt;") for cell in cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def fields(schema: Mapping[str, Any]) -> str:
    """The fields of an object. ``may be absent`` marks those that are not required."""
    required = schema.get("required", ())
    rows = [
        (f"`{name}`", type_of(field) + ("" if name in required else ", may be absent"), field.get("description", ""))
        for name, field in schema["properties"].items()
    ]
    return table(("field", "type", "meaning"), rows)


def request(method: str, path: str, operation: Mapping[str, Any]) -> str:
    """One request: parameters, bodies and answers."""
    parts = [f"### {method.upper()} {path}\n"]
    parameters = [
        (f"`{entry['name']}`", entry["in"], parameter_type(entry["schema"]), entry.get("description", ""))
        for entry in operation.get("parameters", ())
    ]
    if parameters:
        parts.append(table(("parameter", "in", "type", "meaning"), parameters))
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = content["schema"]
        shown = "\n\n" + fields(schema) if "properties" in schema else f" {schema.get('description', '')}\n"
        parts.append(f"Body `{media}`:{shown}")
    for status, answer in operation["responses"].items():
        if status.isdigit():
            schemas = (content["schema"] for content in answer.get("content", {}).values())
            kinds = " or ".join(type_of(schema) for schema in schemas)
            parts.append(f"{status}: {answer['description']}{f' ({kinds})' if kinds else ''}\n")
    return "\n".join(parts)


def page() -> str:
    """The whole page, in Markdown."""
    openapi = document(create_routes())
    requests = [
        request(method, path, operation)
        for path, operations in openapi["paths"].items()
        for method, operation in operations.items()
    ]
    answers = [
        f"### {name}\n\n{schema['description']}\n\n{fields(schema)}"
        for name, schema in sorted(openapi["components"]["schemas"].items())
    ]
    return "\n".join([HEAD, "## Requests\n", *requests, "## Answers\n", *answers])


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
