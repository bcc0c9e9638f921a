"""A platform for one benchmark, in its own folder, deleted afterwards in every case."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from bench.report import processes_naming
from tests.testbed.platform import Platform, platform
from weft import Client

SMALL = {"cpus": 0.5, "memory": "64MiB"}
"""Resources of a job that only prints the time."""


def with_python(spec: Mapping[str, Any], python: Path | None) -> dict[str, Any]:
    """The spec, run by this interpreter instead of an environment with the spec's framework; None: unchanged.

    For machines without a package index. The interpreter has the packages that the job imports.
    """
    if python is None:
        return dict(spec)
    command = f"export PATH={shlex.quote(str(python.parent))}:$PATH; {spec['command']}"
    return {name: value for name, value in spec.items() if name != "framework"} | {"command": command}


@contextmanager
def own_platform(environment: Mapping[str, str] | None = None) -> Generator[tuple[Platform, Client]]:
    """Yields a platform as `weft up` starts it, and a client. Raises RuntimeError if a process is left at the end.

    Touches no user's installation or profile.
    """
    with ending_cleanly():
        with platform(environment) as running:
            root = running.home.root
            with Client(running.url, running.key) as client:
                yield running, client
        if left := processes_naming(root):
            raise RuntimeError(f"processes of the platform are left: {left}")


@contextmanager
def ending_cleanly() -> Generator[None]:
    """Makes SIGTERM raise SystemExit within the block, so that the clean-up runs as after Ctrl-C."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)
