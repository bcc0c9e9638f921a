"""Freezes the processes of a learner while its files are counted, so that none is moved or written meanwhile.

Control groups have a freezer, which no program escapes. Without them the processes get SIGSTOP, until a look at the
process table shows no new one: only a program that forks faster than the table can be read escapes that. A process
stops only when a processor runs it again and its system call has ended, so ``freeze`` waits for that.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from services.node.learner import Learner
from services.node.processes import processes_below, send_to_all

_FREEZERS: Final = (("freezer.state", "FROZEN", "THAWED"), ("cgroup.freeze", "1", "0"))
"""(file of a group, word that freezes, word that thaws), for v1 and v2."""
_FREEZE_S: Final = 2.0
"""Processes that hang in the kernel cannot be frozen, and write nothing."""
_POLL_S: Final = 0.005
_NOT_RUNNING: Final = frozenset("TtZX")
"""States of threads that are stopped, or have ended."""


def freeze(learner: Learner) -> bool:
    """Stops the learner's processes. Waits until they have stopped, 2 s at most. False if new ones always appear."""
    deadline = time.monotonic() + _FREEZE_S
    groups = [Path(group) for group in learner.document.groups]
    if _write_to_all(groups, 1):
        while not all(map(_is_frozen, groups)) and time.monotonic() < deadline:
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
    groups = [Path(group) for group in learner.document.groups]
    if not _write_to_all(groups, 2):
        send_to_all(processes_below(learner.shim), signal.SIGCONT)


def _write_to_all(groups: list[Path], word: int) -> bool:
    """``word``: its place in ``_FREEZERS``. False if none of the groups has a freezer."""
    written = [_write(group / freezer[0], freezer[word]) for group in groups for freezer in _FREEZERS]
    return any(written)


def _write(path: Path, word: str) -> bool:
    """False if the group has no such file, or is gone."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, word.encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


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
