"""Reads from a stored job document what the use of hardware is computed from, without the rest of it.

A month has many jobs, so stores read only ``HELD_PATHS`` of each document, and the resources of a spec are parsed once
for all jobs that have the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from services.core.domain.codec import MALFORMED, load
from services.core.domain.document import MAX_TIME_MS
from services.core.domain.errors import InvalidSpec
from services.core.domain.held_time import HeldJob, HeldPeriod
from services.core.domain.job import SCHEMA
from services.core.domain.spec import parse_spec
from services.core.domain.status import TERMINAL, Status

HELD_PATHS: Final = (
    "schema",
    "tenant",
    "user",
    "state.status",
    "attempt.admitted",
    "released",
    "held_before",
    "spec.roles",
    "spec.resources",
)
"""Fields of a job document, as paths."""


def read_held_job(job_id: str, values: Mapping[str, Any]) -> HeldJob | None:
    """Returns the job of the values at ``HELD_PATHS``; one that is absent or None takes its default.

    None where they cannot be read: the document is damaged, or of a newer schema.
    """
    try:
        if (values.get("schema") or SCHEMA) > SCHEMA:
            return None
        times = (_time(values.get("attempt.admitted")), _time(values.get("released")))
        periods = tuple(_period(period) for period in values.get("held_before") or ())
        gpus, cpus = _hardware(json.dumps([values.get("spec.roles"), values.get("spec.resources")]))
        return HeldJob(
            id=job_id,
            tenant=_text(values["tenant"]),
            user=_text(values["user"]),
            ended=Status(values["state.status"]) in TERMINAL,
            gpus=gpus,
            cpus=cpus,
            admitted=times[0],
            released=times[1],
            held_before=periods,
        )
    except (InvalidSpec, *MALFORMED):
        return None


def value_at(document: object, path: str) -> Any:
    """Returns the value at a path of a document, such as ``state.status``; None where there is none."""
    for name in path.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("expected a text")
    return value


def _time(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_TIME_MS:
        raise ValueError("expected a time, in Unix ms")
    return value


def _period(document: object) -> HeldPeriod:
    period = load(HeldPeriod, document)
    for time in (period.began, period.ended, period.held):
        _time(time)
    return period


@lru_cache(maxsize=4096)
def _hardware(text: str) -> tuple[float, float]:
    """(GPUs, CPU cores) of all learners of a job. ``text``: [its roles, its resources] as JSON."""
    roles, resources = json.loads(text)
    given = {name: value for name, value in (("roles", roles), ("resources", resources)) if value is not None}
    spec = parse_spec({"name": "held", "command": "held", **given})
    sizes = [(role.count, spec.role_resources(name)) for name, role in spec.roles.items()]
    return sum(count * size.gpus for count, size in sizes), sum(count * size.cpus for count, size in sizes)
