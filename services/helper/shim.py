"""The learner's parent process (the shim), as its helper sees it: notified of changes, and watched for its end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from services.core.domain.codec import MALFORMED
from services.core.domain.learner import Exit
from services.core.runtime.address import TlsFiles
from services.core.runtime.learner_folder import SHIM_FILE, LearnerFolder, start_file
from services.core.runtime.processes import ProcessIdentity, alive, send_signal
from services.helper.log import log_event
from services.helper.settings import load_settings
from services.helper.usage import MachineUsage
from services.helper.wakeup import Wakeup

if TYPE_CHECKING:
    from services.helper.metrics_client import IntakeClient
    from services.helper.reporter import Reporter

LOST_S: Final = 5.0
"""Normally the agent writes the exit of a learner whose shim has died; after so long without one it is lost."""
QUICK_S: Final = 0.01
POLL_S: Final = 0.1
WATCHED_S: Final = 1.0
"""How often files are read while the end of the shim wakes us."""


class ShimWatch:
    """A context while the learner runs. ``notify`` works outside of it, too."""

    def __init__(self, folder: LearnerFolder) -> None:
        self._folder = folder
        self._fd: int | None = None
        self._ended = Wakeup()
        self._missing_since: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def notify(self) -> None:
        """Sends SIGUSR1: the shim reads its files again. A hint; it reads them each second anyway."""
        shim = self._folder.process(SHIM_FILE)
        if shim is not None:
            send_signal(shim, signal.SIGUSR1)

    async def pause(self, *, quick: bool) -> None:
        """Returns when the shim has ended, or when files are to be read again: soon with ``quick``, else seldom."""
        if self._fd is None:
            self._watch()
        seconds = QUICK_S if quick else POLL_S if self._fd is None else WATCHED_S
        if await self._ended.wait(seconds):
            self._close()

    def exit(self, run: int) -> Exit | None:
        return self._folder.exit(run) or self._lost(run)

    def _lost(self, run: int) -> Exit | None:
        """The exit of a learner that is gone with its shim and left no ``exit.json`` for ``LOST_S``; else None."""
        if self._fd is not None:
            return None  # the shim lives
        learner, shim = self._folder.process(start_file(run)), self._folder.process(SHIM_FILE)
        if learner is None or alive(learner) or (shim is not None and alive(shim)):
            self._missing_since = None
            return None
        now = time.monotonic()
        self._missing_since = self._missing_since or now
        if now - self._missing_since < LOST_S:
            return None
        log_event("learner.lost", pid=learner.pid)
        return Exit(time=time.time_ns() // 1_000_000, lost=True)

    @property
    def tls(self) -> TlsFiles | None:
        return load_settings().tls

    @property
    def is_waiting(self) -> bool:
        return True  # the agent starts the shim before the helper

    async def follow_control(self, intake: IntakeClient, reporter: Reporter) -> None:
        """Nothing: the node agent writes stops into the folder."""

    @property
    def usage(self) -> MachineUsage:
        try:
            document = self._folder.document()
        except MALFORMED:  # its processes are found all the same
            document = None
        if document is None:
            return MachineUsage((), self._shim_pid)
        return MachineUsage(document.groups, self._shim_pid, document.gpus)

    def _shim_pid(self) -> int | None:
        shim = self._folder.process(SHIM_FILE)
        return shim.pid if shim is not None and alive(shim) else None

    async def wait_ended(self) -> None:
        """Returns at once: nothing starts a helper again that has ended well."""

    def _watch(self) -> None:
        shim = self._folder.process(SHIM_FILE)
        self._fd = _open_pidfd(shim) if shim is not None else None
        if self._fd is not None:
            asyncio.get_running_loop().add_reader(self._fd, self._ended.set)

    def _close(self) -> None:
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
        self._ended.clear()


def _open_pidfd(process: ProcessIdentity) -> int | None:
    """A pidfd of exactly this process; None if it is gone."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    # Checked after opening: an open pidfd cannot come to mean another process of the same pid.
    if not alive(process):
        os.close(fd)
        return None
    return fd
