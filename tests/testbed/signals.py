"""Stops and kills processes, and waits until that has taken effect."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.waiting import HANG_S


def pause(pid: int, *, within_s: float = HANG_S) -> None:
    """Sends SIGSTOP and returns once every thread of the process has stopped.

    The signal alone is not enough: a thread on another processor runs until it is interrupted there, which takes long
    on a busy machine.
    """
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + within_s
    while not all(_stopped(task) for task in Path(f"/proc/{pid}/task").iterdir()):
        if time.monotonic() > until:
            raise TimeoutError(f"process {pid} has not stopped within {within_s} s")
        time.sleep(0.001)


def kill_all(living: Callable[[], Sequence[int]], *, within_s: float = HANG_S) -> None:
    """Sends SIGKILL, in the given order, until none is ``living``: some end by themselves once another has ended."""
    until = time.monotonic() + within_s
    while pids := living():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise TimeoutError(f"still alive after {within_s} s: {pids}")
        time.sleep(0.001)


def _stopped(task: Path) -> bool:
    try:
        # The state follows the name, which stands in parentheses and may hold any of them itself.
        return (task / "stat").read_text().rpartition(")")[2].split()[0] in {"T", "t", "Z", "X"}
    except (FileNotFoundError, ProcessLookupError):  # it ended before its file was opened, or read
        return True
