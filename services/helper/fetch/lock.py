"""A lock between the helpers of a machine, by a file; the kernel releases it when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from services.helper.fetch.progress import FetchProgress


@contextlib.contextmanager
def hold_lock(path: Path, progress: FetchProgress, waiting_for: str, *, shared: bool = False) -> Generator[int]:
    """Waits for the lock and holds it; yields its descriptor, which a child process may inherit.

    ``shared``: others may hold it as well, if they share it, too.
    ``waiting_for`` is the learner's activity meanwhile. Raises FetchCancelled after a stop.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            progress.report(waiting_for)
            progress.wait(0.1)
        yield fd
    finally:
        os.close(fd)
