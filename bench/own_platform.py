"""A platform for one benchmark: in a folder of its own, gone afterwards, whatever happens meanwhile."""

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
"""What a job that only says what time it is asks for."""


@contextmanager
def own_platform(environment: Mapping[str, str] | None = None) -> Generator[tuple[Platform, Client]]:
    """The platform as `weft up` starts it, and a client of it. A process of it that is left at the end is an error.

    No user's installation or profile is touched.
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
    """SIGTERM ends what is within as Ctrl-C does: by an exception, so that everything is put away."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)
