"""Processes that stand still, or are gone, and surely so."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.waiting import HANG_S


def pause(pid: int, *, within_s: float = HANG_S) -> None:
    """SIGSTOP, and every thread of the process has stopped when this returns.

    The signal alone is a wish: a thread on another processor goes on until it is interrupted there, which takes long on
    a busy machine.
    """
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + within_s
    while not all(_stopped(task) for task in Path(f"/proc/{pid}/task").iterdir()):
        if time.monotonic() > until:
            raise TimeoutError(f"process {pid} has not stopped within {within_s} s")
        time.sleep(0.001)


def kill_all(living: Callable[[], Sequence[int]], *, within_s: float = HANG_S) -> None:
    """Kill -9, in the order given, until none is ``living``: some end by themselves when another one is gone."""
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
    except FileNotFoundError:
        return True
