"""Writes cli/weft/_cli/_schema.json, the JSON Schema of the job spec, from the platform's model.

The command line explains fields with it (`weft train -h resources.gpus`), and editors may check and complete by it. It
is committed, since the command line is installed without the platform. With --check: only compares the file.
"""

from __future__ import annotations

import json
import sys
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel, BeforeValidator

from scripts.generated import write_or_check
from services.core.domain import spec
from services.core.domain.units import format_bytes, format_duration, parse_bytes, parse_duration

TARGET = Path(__file__).parents[1] / "cli" / "weft" / "_cli" / "_schema.json"
_FORMATS: dict[Any, str] = {parse_duration: "duration", parse_bytes: "bytes"}


def schema() -> dict[str, Any]:
    """Returns pydantic's schema with additions: units as people write them, and the shorthands."""
    made = spec.JobSpec.model_json_schema()
    models = {
        name: model for name, model in vars(spec).items() if isinstance(model, type) and issubclass(model, BaseModel)
    }
    for name, model in models.items():
        target = made if name == "JobSpec" else made["$defs"].get(name)
        for field, of in (model.model_fields if target else {}).items():
            formats = [_FORMATS[v] for v in _validators((of.annotation, *of.metadata)) if v in _FORMATS]
            if formats:
                _as_text(target["properties"][field], formats[0])
    learners = {"type": "integer", "minimum": 1, "maximum": spec.MAX_LEARNERS}
    made["properties"]["learners"] = {
        **learners,
        "title": "Learners",
        "description": "Shorthand for roles: {worker: {count: N}}.",
    }
    made["required"] = [field for field in made["required"] if field != "roles"]  # one worker by default
    made["properties"]["framework"]["anyOf"].insert(0, {"type": "string", "description": "NAME or NAME:VERSION"})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def _validators(annotation: Any) -> list[Any]:
    """Returns the functions of all BeforeValidators within an annotation."""
    if isinstance(annotation, BeforeValidator):
        return [annotation.func]
    inside = (
        annotation
        if isinstance(annotation, tuple)
        else (*typing.get_args(annotation), *getattr(annotation, "__metadata__", ()))
    )
    return [validator for part in inside for validator in _validators(part)]


def _as_text(field: dict[str, Any], form: str) -> None:
    """People write ``30s`` and ``16GB``; the numbers that pydantic names are what they become."""
    for key in ("type", "anyOf", "minimum", "maximum", "exclusiveMinimum"):
        field.pop(key, None)
    if isinstance(field.get("default"), int):
        field["default"] = (format_duration if form == "duration" else format_bytes)(field["default"])
    field["anyOf"] = [
        {"type": kind, "format": form} for kind in ("string", "number" if form == "duration" else "integer")
    ]


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, json.dumps(schema(), indent=1, sort_keys=True) + "\n"))
