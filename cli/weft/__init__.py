"""Weft: train deep-learning models on a shared platform.

The same package serves three readers: a program that submits jobs (`weft.Client`, `weft.AsyncClient`),
the command line, and the code inside a learner (`weft.report`,
`weft.checkpoint_requested`, `weft.checkpoint_saved`, `weft.progress`).

`import weft` loads nothing but this file: a learner has neither an HTTP client nor
anything else of ours installed, and `weft --help` has 150 ms. Each name is fetched
from its module when it is first used (PEP 562) and kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft._aio._client import AsyncClient
    from weft._aio._job import AsyncJob
    from weft._client import Client
    from weft._errors import (
        Conflict,
        ConnectionFailed,
        FieldError,
        IdempotencyMismatch,
        IllegalTransition,
        Internal,
        InvalidArchive,
        InvalidRequest,
        InvalidSpec,
        NoSpace,
        NotFinished,
        NotFound,
        PermissionDenied,
        PreconditionFailed,
        ResourceExhausted,
        TooLarge,
        Unauthenticated,
        Unavailable,
        WeftError,
    )
    from weft._job import Job
    from weft._learner import checkpoint_requested, checkpoint_saved, progress, report
    from weft._records import Artifact, HistoryEvent, LogLine, Point, Series, StartupStep

__all__ = [
    "Artifact",
    "AsyncClient",
    "AsyncJob",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "FieldError",
    "HistoryEvent",
    "IdempotencyMismatch",
    "IllegalTransition",
    "Internal",
    "InvalidArchive",
    "InvalidRequest",
    "InvalidSpec",
    "Job",
    "LogLine",
    "NoSpace",
    "NotFinished",
    "NotFound",
    "PermissionDenied",
    "Point",
    "PreconditionFailed",
    "ResourceExhausted",
    "Series",
    "StartupStep",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "WeftError",
    "checkpoint_requested",
    "checkpoint_saved",
    "progress",
    "report",
]

# Public name -> the private module that defines it; the errors share one.
_HOMES = {
    "AsyncClient": "weft._aio._client",
    "AsyncJob": "weft._aio._job",
    "Client": "weft._client",
    "Job": "weft._job",
    **dict.fromkeys(("Artifact", "HistoryEvent", "LogLine", "Point", "Series", "StartupStep"), "weft._records"),
    **dict.fromkeys(("checkpoint_requested", "checkpoint_saved", "progress", "report"), "weft._learner"),
}


def __getattr__(name: str) -> object:
    """Fetch a public name from its module. Unknown names: AttributeError."""
    if name not in __all__:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    home = _HOMES.get(name, "weft._errors")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value  # the next use does not come through here
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
