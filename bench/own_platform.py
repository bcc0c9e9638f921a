"""A platform for one benchmark, in its own folder, deleted afterwards in every case."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from bench.report import processes_naming
from tests.testbed.platform import Platform, platform
from weft import Client

SMALL = {"cpus": 0.5, "memory": "64MiB"}
"""Resources of a job that only prints the time."""


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
