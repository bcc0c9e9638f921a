"""Freezes the processes of a learner while its files are counted, so that none is moved or written meanwhile.

Control groups have a freezer, which no program escapes. Without them the processes get SIGSTOP, until a look at the
process table shows no new one: only a program that forks faster than the table can be read escapes that. A process
stops only when a processor runs it again and its system call has ended, so ``freeze`` waits for that.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from services.node.cgroups import set_frozen
from services.node.learner import Learner
from services.node.processes import processes_below, send_to_all

_FREEZE_S: Final = 2.0
"""Processes that hang in the kernel cannot be frozen, and write nothing."""
_POLL_S: Final = 0.005
_NOT_RUNNING: Final = frozenset("TtZX")
"""States of threads that are stopped, or have ended."""


def freeze(learner: Learner) -> bool:
    """Stops the learner's processes. Waits until they have stopped, 2 s at most. False if new ones always appear."""
    deadline = time.monotonic() + _FREEZE_S
    groups = learner.document.groups
    if set_frozen(groups, frozen=True):
        while not all(_is_frozen(Path(group)) for group in groups) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return True
    signalled = set[int]()
    while new := processes_below(learner.shim) - signalled:
        send_to_all(new, signal.SIGSTOP)
        signalled |= new
        if time.monotonic() > deadline:
            return False
    moving = signalled
    while (moving := {pid for pid in moving if not _is_stopped(pid)}) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return True


def thaw(learner: Learner) -> None:
    """Lets the learner's processes run again; does nothing to those that run."""
    if not set_frozen(learner.document.groups, frozen=False):
        send_to_all(processes_below(learner.shim), signal.SIGCONT)


def _is_frozen(group: Path) -> bool:
    """True also for a group without a freezer."""
    with suppress(OSError):
        return (group / "freezer.state").read_text().strip() == "FROZEN"
    with suppress(OSError):
        return "frozen 1" in (group / "cgroup.events").read_text().splitlines()
    return True


def _is_stopped(pid: int) -> bool:
    """Whether all its threads have stopped or ended."""
    try:
        return all(_state(task) in _NOT_RUNNING for task in Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # a thread, or the process, has just ended
        return not Path(f"/proc/{pid}").exists()


def _state(task: Path) -> str:
    # It follows the name, which is in parentheses and may itself contain parentheses.
    return (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
