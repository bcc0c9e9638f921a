"""What the operator decides about fetching, from the environment (the agent hands ``WEFT_*`` on to helpers).

Not pydantic-settings like the services': its import alone would take as long as all else before a learner runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    data_paths: tuple[Path, ...] = ()
    """WEFT_DATA_PATHS: folders that jobs may read as ``local`` data, separated by ':'. None by default: a path in a
    job spec is otherwise a way to read what the platform can and its owner cannot."""
    http_allow: tuple[str, ...] = ()
    """WEFT_HTTP_ALLOW: hosts and networks (10.0.0.0/8) that are not on the public internet and from which jobs may
    fetch data all the same, separated by ','. None by default: metadata services and admin ports live there."""
    http_max_bytes: int = 2**40
    """WEFT_HTTP_MAX_BYTES: the largest file that is downloaded, in bytes. A backstop against endless answers."""
    drain_s: float = 60.0
    """WEFT_HELPER_DRAIN_S: how long a learner's end waits for a metrics service that is away, in seconds. Then it is
    stored all the same: its hardware is given back, and what was not taken in is in its stored logs only."""


def read(environ: Mapping[str, str] = os.environ) -> FetchSettings:
    """From the environment; ValueError where it is malformed."""
    defaults = FetchSettings()
    return FetchSettings(
        data_paths=tuple(Path(path) for path in environ.get("WEFT_DATA_PATHS", "").split(":") if path),
        http_allow=tuple(part.strip() for part in environ.get("WEFT_HTTP_ALLOW", "").split(",") if part.strip()),
        http_max_bytes=int(environ.get("WEFT_HTTP_MAX_BYTES", defaults.http_max_bytes)),
        drain_s=float(environ.get("WEFT_HELPER_DRAIN_S", defaults.drain_s)),
    )
