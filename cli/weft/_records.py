"""Lines, points, series and events of a job, with times as datetimes and numbers as numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from weft._times import parse_time, time_text


def value_json(value: float) -> float | str:
    """A metric's value as the API spells it: JSON has no number for NaN and the infinities."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def parse_value(value: object) -> float:
    """A metric's value; JSON spells those that are not finite as text ("NaN", "Infinity", "-Infinity")."""
    return float(value)  # type: ignore[arg-type]  # float() reads all three spellings


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a learner's output."""

    seq: int
    """Rises by one over the whole job; a resume token."""
    time: datetime
    attempt: int
    role: str
    rank: int
    run: int
    stream: str
    """``stdout`` or ``stderr``."""
    text: str
    partial: bool = False
    """The line was too long and continues in the next one."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> LogLine:
        return cls(
            seq=int(document["seq"]),
            time=parse_time(document["time"]),
            attempt=int(document["attempt"]),
            role=str(document["role"]),
            rank=int(document["rank"]),
            run=int(document.get("run", 1)),
            stream=str(document["stream"]),
            text=str(document["text"]),
            partial=bool(document.get("partial")),
        )

    def as_json(self) -> dict[str, Any]:
        """The line as the API gives it."""
        return {**asdict(self), "time": time_text(self.time)}


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one metric, as a learner reported it."""

    seq: int
    time: datetime
    attempt: int
    role: str
    rank: int
    name: str
    step: int | None
    value: float
    """May be NaN or infinite."""
    context: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Point:
        return cls(
            seq=int(document["seq"]),
            time=parse_time(document["time"]),
            attempt=int(document["attempt"]),
            role=str(document["role"]),
            rank=int(document["rank"]),
            name=str(document["name"]),
            step=document.get("step"),
            value=parse_value(document["value"]),
            context=dict(document.get("context") or {}),
        )


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one learner over its steps: lists of one length, ready for numpy or a plot.

    Unpacks into steps and values: ``steps, losses = job.metrics("loss")``.
    """

    name: str
    role: str
    rank: int
    context: Mapping[str, str]
    steps: list[int | None]
    values: list[float]
    times: list[datetime]
    attempts: list[int]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Series:
        return cls(
            name=str(document["name"]),
            role=str(document["role"]),
            rank=int(document["rank"]),
            context=dict(document.get("context") or {}),
            steps=list(document["steps"]),
            values=[parse_value(value) for value in document["values"]],
            times=[parse_time(text) for text in document["times"]],
            attempts=list(document["attempts"]),
        )

    def as_json(self) -> dict[str, Any]:
        """The curve as the API gives it."""
        values, times = [value_json(value) for value in self.values], [time_text(time) for time in self.times]
        return {**asdict(self), "values": values, "times": times}

    def __iter__(self) -> Iterator[list[int | None] | list[float]]:
        return iter((self.steps, self.values))

    def arrays(self) -> tuple[Any, Any]:
        """Steps and values as numpy arrays; a point without a step has its place. Needs numpy."""
        import numpy as np  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415 - an extra

        steps = [place if step is None else step for place, step in enumerate(self.steps)]
        return np.asarray(steps), np.asarray(self.values, dtype=float)

    def frame(self) -> Any:
        """A pandas DataFrame with the columns step, value, time and attempt. Needs pandas."""
        import pandas as pd  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415 - an extra

        columns = {"step": self.steps, "value": self.values, "time": self.times, "attempt": self.attempts}
        return pd.DataFrame(columns)


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One change of a job's status: its actor and its reason."""

    seq: int
    time: datetime
    actor: str
    before: str | None
    to: str
    attempt: int
    reason: str = ""
    message: str = ""
    generation: int = 0
    """Of the job at that time."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> HistoryEvent:
        return cls(
            seq=int(document["seq"]),
            time=parse_time(document["time"]),
            actor=str(document["actor"]),
            before=document.get("from"),
            to=str(document["to"]),
            attempt=int(document["attempt"]),
            reason=str(document.get("reason") or ""),
            message=str(document.get("message") or ""),
            generation=int(document.get("generation", 0)),
        )

    def as_json(self) -> dict[str, Any]:
        """The event as the API gives it."""
        return {
            "seq": self.seq,
            "time": time_text(self.time),
            "actor": self.actor,
            "generation": self.generation,
            "from": self.before,
            "to": self.to,
            "attempt": self.attempt,
            "reason": self.reason,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True)
class StartupStep:
    """A step of a job's start-up."""

    step: str
    """queue, schedule, image, code, data, environment, checkpoint, launch or first_step."""
    began: datetime
    ended: datetime | None
    """None: it lasts, or its attempt ended before."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> StartupStep:
        ended = document.get("ended")
        return cls(str(document["step"]), parse_time(document["began"]), parse_time(ended) if ended else None)

    @property
    def seconds(self) -> float | None:
        """How long it took; None without an end."""
        return None if self.ended is None else (self.ended - self.began).total_seconds()


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a job left behind."""

    path: str
    """e.g. ``attempts/1/results/worker-0/model.npz``"""
    size: int
    """Bytes."""
    etag: str
    modified: datetime
    learner: str = ""
    """Name of the learner that left it, e.g. ``worker-0``; empty if unknown, and of ``code.zip``."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Artifact:
        return cls(
            path=str(document["path"]),
            size=int(document["size"]),
            etag=str(document["etag"]),
            modified=parse_time(document["modified"]),
            learner=str(document.get("learner") or ""),
        )
