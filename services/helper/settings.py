"""Settings of the operator, from the environment (the agent passes ``WEFT_*`` on to helpers).

Not pydantic-settings as in the services: its import alone takes as long as everything else before a learner runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.core.runtime.address import TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperSettings:
    data_paths: tuple[Path, ...] = ()
    """WEFT_DATA_PATHS: folders that jobs may read as ``local`` data, separated by ':'. None by default: a path in a
    job spec could otherwise read what the platform can read and the job's owner cannot."""
    http_allow: tuple[str, ...] = ()
    """WEFT_HTTP_ALLOW: hosts and networks (10.0.0.0/8) outside the public internet from which jobs may fetch data,
    separated by ','. None by default: metadata services and admin ports have such addresses."""
    http_max_bytes: int = 2**40
    """WEFT_HTTP_MAX_BYTES: the largest file that is downloaded, in bytes. It stops endless responses."""
    build_uid: int = 69_999
    """WEFT_BUILD_UID: if the platform runs as root, environments are built under this user id. It should have no
    account and lie outside WEFT_NODE_UID_FIRST's range; 0: they are built as root."""
    drain_s: float = 60.0
    """WEFT_HELPER_DRAIN_S: how long a learner's end waits for an unavailable metrics service, in seconds. After that
    the learner counts as stored and its hardware is given back; unsent lines are in its stored logs only."""
    checkpoint_quiet_s: float = 3.0
    """WEFT_CHECKPOINT_QUIET_S: an entry of CHECKPOINT_DIR counts as saved, and is stored while the learner trains, once
    nothing of it has changed for so many seconds. Trainings that call weft.checkpoint_saved do not depend on it."""
    checkpoint_every_s: float = 10.0
    """WEFT_CHECKPOINT_EVERY_S: the shortest pause between two snapshots of a learner's checkpoints, in seconds. After
    one that took longer to store, the pause is four times as long as that."""
    tls: TlsFiles | None = None
    """WEFT_TLS_AUTHORITY_FILE, WEFT_TLS_CERTIFICATE_FILE, WEFT_TLS_KEY_FILE: those of the node agent, whose child the
    helper is."""


def load_settings(environ: Mapping[str, str] = os.environ) -> HelperSettings:
    """Reads the environment. Raises ValueError for a number that is none."""
    defaults = HelperSettings()
    return HelperSettings(
        data_paths=tuple(Path(path) for path in environ.get("WEFT_DATA_PATHS", "").split(":") if path),
        http_allow=tuple(part.strip() for part in environ.get("WEFT_HTTP_ALLOW", "").split(",") if part.strip()),
        http_max_bytes=int(environ.get("WEFT_HTTP_MAX_BYTES", defaults.http_max_bytes)),
        build_uid=int(environ.get("WEFT_BUILD_UID", defaults.build_uid)),
        drain_s=float(environ.get("WEFT_HELPER_DRAIN_S", defaults.drain_s)),
        checkpoint_quiet_s=_seconds(environ, "WEFT_CHECKPOINT_QUIET_S", defaults.checkpoint_quiet_s),
        checkpoint_every_s=_seconds(environ, "WEFT_CHECKPOINT_EVERY_S", defaults.checkpoint_every_s),
        tls=TlsFiles.given(environ),
    )


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    seconds = float(environ.get(name, default))
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{name} is a number of seconds above 0")
    return seconds
