"""The learner's parent, as its helper sees it: to be woken, and to be missed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from types import TracebackType
from typing import Final, Self

from services.core.domain.learner import Exit
from services.core.runtime.processes import ProcessIdentity, alive, send_signal
from services.helper.folder import LearnerFolder
from services.helper.journal import note
from services.helper.wakeup import Wakeup

LOST_S: Final = 5.0
"""Normally the agent writes the exit of a learner whose shim has died; where nobody does for so long, it is lost."""
QUICK_S: Final = 0.01
LOOK_S: Final = 0.1
WATCHED_S: Final = 1.0
"""While its end is sure to wake us."""
_SHIM: Final = "shim.json"


class ShimWatch:
    """Used as a context while the learner runs; ``wake`` needs none."""

    def __init__(self, folder: LearnerFolder) -> None:
        self._folder = folder
        self._fd: int | None = None
        self._ended = Wakeup()
        self._missed_since: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go()

    def wake(self) -> None:
        """SIGUSR1: look at your files. A hint; it looks each second anyway."""
        who = self._folder.process(_SHIM)
        if who is not None:
            send_signal(who, signal.SIGUSR1)

    async def pause(self, *, quick: bool) -> None:
        """Until the shim has ended, or it is time to look at the files: soon (``quick``), or as seldom as is safe."""
        if self._fd is None:
            self._watch()
        seconds = QUICK_S if quick else LOOK_S if self._fd is None else WATCHED_S
        if await self._ended.wait(seconds):
            self._let_go()

    def lost(self, run: int) -> Exit | None:
        """An end that nobody saw: learner and shim are gone as processes, and no ``exit.json`` came."""
        if self._fd is not None:
            return None  # its end has not been seen yet
        learner, shim = self._folder.process(f"runs/{run}/start.json"), self._folder.process(_SHIM)
        if learner is None or alive(learner) or (shim is not None and alive(shim)):
            self._missed_since = None
            return None
        now = time.monotonic()
        self._missed_since = self._missed_since or now
        if now - self._missed_since < LOST_S:
            return None
        note("learner.lost", pid=learner.pid)
        return Exit(time=time.time_ns() // 1_000_000, lost=True)

    def _watch(self) -> None:
        who = self._folder.process(_SHIM)
        self._fd = _handle(who) if who is not None else None
        if self._fd is not None:
            asyncio.get_running_loop().add_reader(self._fd, self._ended.ring)

    def _let_go(self) -> None:
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
        self._ended.clear()


def _handle(who: ProcessIdentity) -> int | None:
    """A pidfd of exactly this process; None where it is gone."""
    try:
        fd = os.pidfd_open(who.pid)
    except ProcessLookupError:
        return None
    # Asked after opening: from here on the pid cannot come to mean another process.
    if not alive(who):
        os.close(fd)
        return None
    return fd
