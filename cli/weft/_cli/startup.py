"""The start-up of a job in words: how long each step took, and what is fetched now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from weft._cli.text import one_line, size, span
from weft._times import parse_time

_STEPS: Final[Mapping[str, str]] = {
    "queue": "waited in the queue",
    "schedule": "learners placed on nodes",
    "image": "image pulled, containers started",
    "code": "code fetched",
    "data": "data fetched",
    "environment": "environment built or found",
    "checkpoint": "checkpoint restored",
    "launch": "all learners ready, process started",
    "first_step": "first metric of the training",
}


ENDED: Final = frozenset({"COMPLETED", "FAILED", "KILLED", "HALTED"})
"""Statuses in which no step lasts any more."""


def timeline(steps: Sequence[Mapping[str, Any]], *, at_rest: bool) -> list[str]:
    """A line for each step: its time, when it ended (seconds since the beginning), and what it is.

    ``at_rest``: a step without an end was never finished; else it lasts. Its time is aligned with those of the others.
    """
    if not steps:
        return []
    begin = parse_time(steps[0]["began"])
    rows = [("STEP", "TOOK", "ENDED AT", "")]
    for step in steps:
        if step.get("ended"):
            took, ended = _took(step, at_rest=at_rest), f"+{span((parse_time(step['ended']) - begin).total_seconds())}"
        else:
            took, ended = ("-", "not finished") if at_rest else (span(_since(step)), "so far")
        rows.append((str(step["step"]), took, ended, _STEPS.get(str(step["step"]), "")))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        f"{name:<{widths[0]}}  {took:>{widths[1]}}  {ended:>{widths[2]}}  {meaning}".rstrip()
        for name, took, ended, meaning in rows
    ]


def summary(steps: Iterable[Mapping[str, Any]], *, at_rest: bool) -> str:
    """All steps in one line: ``queue 0.2s, image 12s, environment 52s so far``."""
    return ", ".join(f"{step['step']} {_took(step, at_rest=at_rest)}" for step in steps)


def _took(step: Mapping[str, Any], *, at_rest: bool) -> str:
    if step.get("ended"):
        return span((parse_time(step["ended"]) - parse_time(step["began"])).total_seconds())
    return "not finished" if at_rest else f"{span(_since(step))} so far"


def _since(step: Mapping[str, Any]) -> float:
    return max(0.0, (datetime.now(UTC) - parse_time(step["began"])).total_seconds())


def fetching(entries: Sequence[Mapping[str, Any]]) -> str:
    """What is fetched now, in one line: of the learner that is furthest behind; empty if nothing is."""
    if not entries:
        return ""
    slowest = min(entries, key=_share)
    parts = [one_line(slowest["message"])]
    if (done := slowest.get("done_bytes")) is not None:
        total = slowest.get("total_bytes")
        more = f" of {size(total)} ({min(99, round(100 * done / total))}%)" if total else ""
        parts.append(f"{size(min(done, total) if total else done)}{more}")
    parts.append(span(_since(slowest)))
    others = f", and {len(entries) - 1} more learners" if len(entries) > 1 else ""
    return f"{slowest['learner']}: {', '.join(parts)}{others}"


def _share(entry: Mapping[str, Any]) -> float:
    done, total = entry.get("done_bytes"), entry.get("total_bytes")
    return done / total if done is not None and total else 0.0
