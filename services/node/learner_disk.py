"""What one learner has on the disk, and its end if that is too much."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from services.core.domain.errors import NoSpace
from services.core.runtime.durable_files import write_reserved
from services.core.runtime.learner_folder import DISK_FILE, LEARNER_FILE
from services.core.runtime.processes import alive, send_signal
from services.node.disk import DiskUse, add_unnamed, measure
from services.node.instrumentation import Instrumentation
from services.node.learner import Learner
from services.node.processes import processes_below, send_to_all, with_descendants

ENDLESS: Final = 2**62
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Baseline:
    """What learners had on the disk at one time: what they have more later is their growth."""

    of_learners: Mapping[Path, DiskUse]
    """Folder of a learner -> its use."""
    free: int
    """What was free then, in bytes or files."""


@dataclass(frozen=True, slots=True)
class Round:
    """One look at all learners that have not ended."""

    of_learners: Mapping[Path, DiskUse]
    free: tuple[int, int]
    """(bytes, files): see ``free_space``."""


def free_space(folder: Path) -> tuple[int, int]:
    """(bytes, files) that are free on the disk of the folder."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize, disk.f_favail


def disk_use(
    learner: Learner, children: Mapping[int, Sequence[int]], *, max_bytes: int = ENDLESS, max_files: int = ENDLESS
) -> DiskUse:
    """What the learner has written, including deleted files that its processes hold. Ends early beyond a bound.

    ``children``: of all processes; it is read once for many learners.
    """
    uid = learner.document.learner_uid
    use = measure(learner.folder, uid, max_bytes=max_bytes, max_files=max_files)
    if (shim := learner.shim) is not None and alive(shim):
        device = (learner.folder / LEARNER_FILE).stat().st_dev
        add_unnamed(use, with_descendants(children, {shim.pid}), uid, device)
    return use


def is_running(learner: Learner) -> bool:
    """True also for one that is being ended, until its last process is gone."""
    return learner.started and not learner.ended


def is_being_ended(learner: Learner) -> bool:
    """True if it was killed with a reason, even if that had no effect yet."""
    return learner.files.has(DISK_FILE)


def end_for_disk(learner: Learner, bound: str, why: str, instrumentation: Instrumentation) -> None:
    """Kills the learner, each time that it is called. ``bound``: the setting."""
    if end_with_reason(learner, {"why": f"{why} ({bound})"}):
        instrumentation.disk_exceeded.labels(bound).inc()
        log.warning("learner.disk_exceeded", job=learner.job, learner=learner.name, bound=bound, why=why)


def end_with_reason(learner: Learner, reason: Mapping[str, str]) -> bool:
    """Kills all processes of the learner. False if there is a reason already, or the learner has ended.

    The reason first: the helper reads it with the exit, and the shim kills what this call misses. It has reserved space
    on the disk, and is written once. The kill is repeated by each call: the agent may have died before the last one, or
    processes may have forked meanwhile.
    """
    if learner.ended:
        return False
    is_first = not is_being_ended(learner)
    if is_first:
        try:
            write_reserved(learner.folder / DISK_FILE, reason)
        except NoSpace as error:
            log.warning("learner.reason_not_written", job=learner.job, learner=learner.name, why=str(error))
    if (process := learner.process) is not None:
        send_signal(process, signal.SIGKILL)  # first: it shall not end by itself because its children are gone
    send_to_all(processes_below(learner.shim), signal.SIGKILL)
    return is_first
