"""The learner's parent, as its helper sees it: to be woken, and to be missed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from types import TracebackType
from typing import Final, Self

from services.core.domain.codec import dump
from services.core.domain.learner import Exit
from services.helper.folder import LearnerFolder, open_process
from services.helper.journal import note

LOST_S: Final = 2.0
"""Its last write may be seen a moment after its end; after so long without one nobody saw how the learner ended."""


class ShimWatch:
    """Used as a context while the learner runs; ``wake`` needs none."""

    def __init__(self, folder: LearnerFolder) -> None:
        self._folder = folder
        self._fd: int | None = None
        self._ended = asyncio.Event()
        self._missed_since: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go()

    def wake(self) -> None:
        """SIGUSR1: look at your files. A hint; it looks each second anyway."""
        fd = open_process(self._folder.read("shim.json"))
        if fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGUSR1)
            os.close(fd)

    async def pause(self, seconds: float) -> None:
        """Waits so long, or until the shim has ended."""
        if self._fd is None:
            self._watch()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        if self._ended.is_set():
            self._let_go()

    def lost(self, run: int) -> Exit | None:
        """An end that nobody saw: shim and learner are gone as processes and left no ``exit.json``."""
        start = self._folder.start(run)
        if self._fd is not None or start is None:
            self._missed_since = None
            return None
        for who in (self._folder.read("shim.json"), dump(start)):
            alive = open_process(who)
            if alive is not None:
                os.close(alive)
                self._missed_since = None
                return None
        now = time.monotonic()
        self._missed_since = self._missed_since or now
        if now - self._missed_since < LOST_S:
            return None
        note("learner.lost", pid=start.pid)
        return Exit(time=time.time_ns() // 1_000_000, lost=True)

    def _watch(self) -> None:
        self._fd = open_process(self._folder.read("shim.json"))
        if self._fd is not None:
            asyncio.get_running_loop().add_reader(self._fd, self._ended.set)

    def _let_go(self) -> None:
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
        self._ended.clear()
