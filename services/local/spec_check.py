"""Validates a job spec while no platform runs: `weft train --dry-run` before `weft up`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from services.core.domain.errors import FieldError, InvalidSpec
from services.core.domain.spec import JobSpec, dump_spec, nearest, parse_spec
from services.core.domain.unsupported import unsupported
from services.core.frameworks import find, names


def framework_error(spec: JobSpec) -> FieldError | None:
    """The error for a framework that is not in the library; None if the spec names none, or a known one."""
    wanted = spec.framework
    if wanted is None or find(wanted.name, wanted.version) is not None:
        return None
    shown = f"{wanted.name}:{wanted.version}" if wanted.version else wanted.name
    return FieldError("/framework", f"there is no framework '{shown}'", nearest(shown, names()))


def check(document: object) -> dict[str, Any]:
    """``{spec, errors}``: the normalised spec and all its errors; ``spec`` is None if it cannot be parsed."""
    try:
        spec = parse_spec(document)
    except InvalidSpec as error:
        return {"spec": None, "errors": [asdict(field_error) for field_error in error.errors]}
    unknown = framework_error(spec)
    errors = [*([unknown] if unknown else []), *unsupported(spec)]
    return {"spec": dump_spec(spec), "errors": [asdict(field_error) for field_error in errors]}
