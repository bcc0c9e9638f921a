"""What one learner has on the disk, and its end if that is too much."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from services.core.domain.errors import NoSpace
from services.core.runtime.durable_files import write_reserved
from services.core.runtime.learner_folder import DISK_FILE, LEARNER_FILE
from services.core.runtime.processes import alive, send_signal
from services.node.disk import DiskUse, add_unnamed, measure
from services.node.instrumentation import Instrumentation
from services.node.learner import Learner
from services.node.processes import with_descendants

ENDLESS: Final = 2**62
log = structlog.get_logger()


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
    """False also for one that was ended for the disk."""
    return learner.started and not learner.ended and not learner.files.has(DISK_FILE)


def end_for_disk(learner: Learner, bound: str, why: str, instrumentation: Instrumentation) -> None:
    """Kills the learner. ``bound``: the setting. Does nothing if it was done before."""
    if end_with_reason(learner, {"why": f"{why} ({bound})"}):
        instrumentation.disk_exceeded.labels(bound).inc()
        log.warning("learner.disk_exceeded", job=learner.job, learner=learner.name, bound=bound, why=why)


def end_with_reason(learner: Learner, reason: Mapping[str, str]) -> bool:
    """Kills the learner. False if it was done before, or the learner has ended.

    The reason first: the helper reads it with the exit. It has reserved space on the disk.
    """
    if learner.files.has(DISK_FILE):
        return False
    try:
        write_reserved(learner.folder / DISK_FILE, reason)
    except NoSpace as error:
        log.warning("learner.reason_not_written", job=learner.job, learner=learner.name, why=str(error))
    process = learner.process
    return process is not None and send_signal(process, signal.SIGKILL)
