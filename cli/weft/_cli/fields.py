"""Fields of the job spec: what each means (from the committed JSON Schema), and on which line a wrong one stands."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import click

from weft._cli.field_examples import example_of
from weft._errors import FieldError, InvalidRequest
from weft._spec_file import SpecFile


def located(refused: InvalidRequest, spec: SpecFile) -> InvalidRequest:
    """The same error, with the file and line of each field, in the order of lines.

    The command line's own changes have their --set instead.
    """
    errors = tuple(
        FieldError(e.pointer, e.message, e.hint, _place(spec, e.pointer))
        for e in sorted(refused.errors, key=lambda error: spec.line_of(error.pointer) or 0)
    )
    if len(errors) == 1:
        hint = f"; {errors[0].hint}" if errors[0].hint else ""
        message = f"{errors[0].where}: {errors[0].message}{hint}"
        return type(refused)(message, errors=errors, status=refused.status)
    return type(refused)(refused.message, errors=errors, status=refused.status, trace_id=refused.trace_id)


def _place(spec: SpecFile, pointer: str) -> str:
    if setting := spec.setting_of(pointer):
        return f"--set {setting}"
    line = spec.line_of(pointer)
    return f"{spec.path}:{line}" if line else str(spec.path)


def schema() -> dict[str, Any]:
    """JSON Schema of the job spec; `scripts/schema.py` makes it from the platform's model."""
    schema: dict[str, Any] = json.loads((files("weft._cli") / "_schema.json").read_text(encoding="utf-8"))
    return schema


def explain_field(path: str) -> str:
    """What a field means: ``resources.gpus``, ``roles.worker.count``, ``inputs.0.mount``."""
    whole = schema()
    node: dict[str, Any] = whole
    walked: list[str] = []
    required = False
    for part in path.strip(".").split("."):
        options = _children(whole, node)
        inner = options.get(part, options.get("*"))
        if inner is None:
            raise click.UsageError(_unknown(part, walked, [name for name in options if name != "*"]))
        required = part in _object(whole, node).get("required", ())
        node = inner
        walked.append(part)
    return _text(whole, node, ".".join(walked), required=required)


def all_fields() -> list[tuple[str, str]]:
    """The path of every field and what it means. Names that the user chooses are those of an example."""
    whole = schema()
    fields: list[tuple[str, str]] = []

    def walk(node: Mapping[str, Any], path: str) -> None:
        for name, child in _children(whole, node).items():
            if name == "*":
                if path == "roles":
                    walk(child, "roles.worker")
                continue
            inner = f"{path}.{name}" if path else name
            fields.append((inner, str(child.get("description") or "")))
            walk(child, inner)

    walk(whole, "")
    return fields


def _unknown(part: str, walked: list[str], names: list[str]) -> str:
    where = f"'{'.'.join(walked)}' has" if walked else "the spec has"
    if not names:
        return f"{where} no fields"
    close = difflib.get_close_matches(part, names, n=1)
    return f"{where} no field '{part}'; " + (
        f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(names)}"
    )


def _forms(whole: Mapping[str, Any], node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The alternatives of a node, references followed, null left out."""
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        target: dict[str, Any] = whole["$defs"][name]
        return _forms(whole, {**target, **{key: value for key, value in node.items() if key != "$ref"}})
    if "anyOf" in node:
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return [
            form
            for form_node in node["anyOf"]
            if form_node.get("type") != "null"
            for form in _forms(whole, {**rest, **form_node})
        ]
    return [dict(node)]


def _object(whole: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    for form in _forms(whole, node):
        if form.get("type") == "array":
            return _object(whole, form.get("items") or {})
        if "properties" in form or isinstance(form.get("additionalProperties"), dict):
            return form
    return {}


def _children(whole: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Fields by name; ``*`` stands for names and numbers that the user chooses."""
    children: dict[str, dict[str, Any]] = {}
    for form in _forms(whole, node):
        children.update(form.get("properties") or {})
        if isinstance(form.get("additionalProperties"), dict):
            children["*"] = form["additionalProperties"]
        if form.get("type") == "array":
            children.update(_object(whole, form).get("properties") or {})
            children["*"] = form.get("items") or {}
    return children


def _text(whole: Mapping[str, Any], node: Mapping[str, Any], path: str, *, required: bool) -> str:
    forms = _forms(whole, node)
    lines = [f"{path}: {' or '.join(dict.fromkeys(_kind(form) for form in forms))}{' (required)' if required else ''}"]
    text = node.get("description") or next((form["description"] for form in forms if "description" in form), "")
    lines += [f"  {' '.join(text.split())}"] if text else []
    limits = [text for form in forms for text in _limits(form)]
    lines += [f"  {text}" for text in dict.fromkeys(limits)]
    if "default" in node and node["default"] not in (None, "", [], {}):
        lines.append(f"  default: {json.dumps(node['default'])}")
    example = example_of(path)
    lines += ["  example:", *(f"    {line}" for line in example.split("\n"))] if example else []
    children = _children(whole, node)
    for name, child in children.items():
        label = "NAME" if name == "*" and "properties" not in node else name
        if name == "*" and len(children) > 1:
            continue
        lines.append(f"  {path}.{label:<14} {_summary(whole, child)}".rstrip())
    return "\n".join(lines)


def _summary(whole: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    forms = _forms(whole, node)
    kinds = " or ".join(dict.fromkeys(_kind(form) for form in forms))
    text = node.get("description") or ""
    return f"{kinds}{': ' + ' '.join(text.split()) if text else ''}"


def _kind(form: Mapping[str, Any]) -> str:
    if "enum" in form:
        return " | ".join(str(value) for value in form["enum"])
    if "const" in form:
        return str(form["const"])
    if form.get("format") in {"duration", "bytes"}:
        return "duration, e.g. 30s, 10m, 2h" if form["format"] == "duration" else "size, e.g. 512MiB or 16GB"
    names = {
        "object": "mapping",
        "array": "list",
        "string": "text",
        "integer": "whole number",
        "boolean": "true or false",
    }
    return names.get(str(form.get("type")), str(form.get("type", "any value")))


def _limits(form: Mapping[str, Any]) -> list[str]:
    if form.get("format") in {"duration", "bytes"}:
        return []
    named = {
        "minimum": "at least",
        "maximum": "at most",
        "exclusiveMinimum": "more than",
        "exclusiveMaximum": "less than",
        "maxLength": "characters at most:",
    }
    text = [f"{word} {form[key]:g}" for key, word in named.items() if key in form and form[key] != 65_536]
    return [", ".join(text)] if text else []
