"""Jobs as a table: `weft list`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from weft._cli.output import Column, table
from weft._cli.text import ago, amount, number, size, span
from weft._times import parse_time

MOST_SORTED: Final = 10_000
"""Jobs that are read to be sorted."""
_LONG_METRIC: Final = 12
"""A metric's name that is longer may be cut. Values are shorter, and stay whole."""


def job_table(documents: Sequence[dict[str, Any]], metrics: Sequence[str], wide: bool) -> str:
    """A row for each job; a column for each of ``metrics`` (NAME, NAME:min or NAME:max)."""
    has_progress = any("progress" in job for job in documents)
    # Metrics were requested: on a narrow terminal they are left out after the others, the last one first. Next to go
    # is the name, so that the id and the first metric stay.
    last = len(metrics) + 1
    columns = [
        Column("ID"),
        Column("NAME", flexible=True, spare=1 if metrics else 0),
        Column("STATUS"),
        Column("LEARNERS", right=True, spare=last + 4),
        Column("AGE", right=True, spare=last + 3),
        Column("TOOK", right=True, spare=last + 2),
        *([Column("DONE", right=True, spare=last + 1)] if has_progress else []),
        *(
            Column(metric.upper(), flexible=len(metric) > _LONG_METRIC, right=True, spare=place + 1 if place else 0)
            for place, metric in enumerate(metrics)
        ),
        Column("WHY", flexible=True, spare=last if metrics else 0),
        Column("USER", wide_only=True),
        Column("TENANT", wide_only=True),
        Column("CPUS", right=True, wide_only=True),
        Column("MEMORY", right=True, wide_only=True),
        Column("GPUS", right=True, wide_only=True),
        Column("FRAMEWORK", wide_only=True),
        Column("ATTEMPT", right=True, wide_only=True),
    ]
    rows: list[list[object]] = []
    for job in documents:
        resources, attempt, took = job.get("resources") or {}, job.get("attempt") or {}, took_s(job)
        rows.append(
            [
                job["id"],
                job.get("name", ""),
                job.get("status", ""),
                job.get("learners", ""),
                ago(parse_time(job["created"])),
                "" if took is None else span(took),
                *([f"{job['progress'] * 100:.0f} %" if "progress" in job else ""] if has_progress else []),
                *(_shown(metric_value(job, metric)) for metric in metrics),
                job.get("reason") or job.get("pending_reason") or "",
                job.get("user", ""),
                job.get("tenant", ""),
                amount(resources.get("cpus", 0)),
                size(resources.get("memory", 0)),
                amount(resources.get("gpus", 0)),
                job.get("framework") or "-",
                attempt.get("number", 0),
            ]
        )
    return table(columns, rows, wide=wide)


def took_s(job: dict[str, Any]) -> float | None:
    """Seconds from the first start of the attempt to its end, or until now; None before the start, and in the queue.

    A job that was halted and is killed later has ended its attempt when it gave back its hardware.
    """
    started, status = (job.get("attempt") or {}).get("started"), job.get("status")
    if not started or status in {"QUEUED", "RESUMED"}:
        return None
    ended = job.get("since") if status == "HALTED" else job.get("finished")
    if ended is None:
        return (datetime.now(UTC) - parse_time(started)).total_seconds()
    end = min(parse_time(time) for time in (ended, job.get("released")) if time)
    return (end - parse_time(started)).total_seconds()


def metric_value(job: dict[str, Any], metric: str) -> float | None:
    """Its last value, with ``NAME:min`` or ``NAME:max`` the best; None if the job has not reported it."""
    name, _, best = metric.rpartition(":")
    field = "best" if name and best in {"min", "max"} else "last"
    for entry in job.get("metrics") or ():
        if entry["name"] == (name if field == "best" else metric) and entry[field] is not None:
            return float(entry[field])
    return None


def sorted_jobs(documents: Sequence[dict[str, Any]], key: str, *, reverse: bool) -> list[dict[str, Any]]:
    """The jobs by a key of `weft list --sort` or by a metric, the smallest first; those without a value are last."""
    values: dict[str, Callable[[dict[str, Any]], Any]] = {
        "name": lambda job: job.get("name", ""),
        "status": lambda job: job.get("status", ""),
        "user": lambda job: job.get("user", ""),
        "age": lambda job: -parse_time(job["created"]).timestamp(),
        "took": took_s,
        "progress": lambda job: job.get("progress"),
    }
    value_of = values.get(key) or partial(metric_value, metric=key)
    valued = [(value, job) for job in documents if (value := value_of(job)) is not None and not _is_nan(value)]
    valued.sort(key=lambda entry: entry[0], reverse=reverse)
    placed = {job["id"] for _, job in valued}
    return [job for _, job in valued] + [job for job in documents if job["id"] not in placed]


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _shown(value: float | None) -> str:
    return "-" if value is None else number(value)
