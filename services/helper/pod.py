"""The learner of a pod, as its helper sees it: the entry process of another container, reached by files only.

The helper hears of a stop from the metrics service, by a stream and with each heartbeat, and writes ``stop.json``. The
kubelet ends a native sidecar after the learner's container, so a SIGTERM means that the learner has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final

from services.core.domain.errors import NoSpace, WeftError
from services.core.domain.learner import Exit
from services.core.runtime import pod_layout
from services.core.runtime.address import TlsAuthority
from services.core.runtime.learner_folder import RUN, RUNS_FOLDER, STOP_FILE, LearnerFolder, StopMark
from services.core.runtime.retry import Backoff
from services.helper.changes import Changes, watch_folder
from services.helper.log import log_event
from services.helper.usage import PodUsage
from services.helper.wakeup import Wakeup

if TYPE_CHECKING:
    from services.helper.metrics_client import IntakeClient
    from services.helper.reporter import Reporter

QUICK_S: Final = 0.01
POLL_S: Final = 0.1
"""How often files are read: at first, and while the learner runs."""
WATCHED_S: Final = 5.0
"""The same while the kernel wakes us for new names in the run's folder: the record of the end is one."""
HELD_S: Final = 1.0
"""The same while a record of the end is held back."""
KUBELET_S: Final = 5.0
"""The kubelet ends the container of a pod that it evicts at once within two seconds."""
ENDED_S: Final = 30.0
_OF_THE_KUBELET: Final = frozenset({signal.SIGTERM, signal.SIGKILL})


class PodLearner:
    def __init__(self, folder: LearnerFolder, tls: TlsAuthority | None) -> None:
        """In the event loop. SIGTERM means from now on that the learner has ended."""
        self.tls = tls
        self._folder = folder
        self._ended = Wakeup()
        self._changed = Wakeup()
        self._changes = Changes()
        self._is_watched = False
        """Whether every new name in the run's folder since the last ``pause`` is noticed."""
        self._holds_record = False
        """Whether there is a record of the end that ``exit`` does not return yet."""
        self._written: StopMark | None = None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._note_end)

    def _note_end(self) -> None:
        self._ended.set()
        self._changed.set()

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._changes.close()
        self._is_watched = False

    @property
    def is_waiting(self) -> bool:
        """True once the entry process has made the folder of its run: before, its image may still be pulled."""
        return self._folder.has(f"{RUNS_FOLDER}/{RUN}")

    def notify(self) -> None:
        """Wakes the entry process if the command runs. A hint: it also reads its files every two seconds."""
        with contextlib.suppress(OSError):  # nobody waits at the pipe, or there is none
            pipe = os.open(self._folder.path(pod_layout.WAKE_FILE), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(pipe, b"\n")
            finally:
                os.close(pipe)

    async def pause(self, *, quick: bool) -> None:
        """Returns when files are to be read again: soon with ``quick``, else at the learner's end or seldom."""
        if quick or not self._is_watched:
            folder = (RUNS_FOLDER, str(RUN))
            self._is_watched = not quick and watch_folder(self._changes.folder, self._folder.root, folder)
            await asyncio.sleep(QUICK_S if quick else POLL_S)
            return
        self._changes.arm(self._changed.set)
        try:
            if await self._changed.wait(HELD_S if self._holds_record else WATCHED_S):
                await asyncio.sleep(QUICK_S)  # the learner can make any number of names
        finally:
            self._changes.disarm()
        self._changed.clear()

    @property
    def usage(self) -> PodUsage:
        return PodUsage(self._folder)

    def exit(self, run: int) -> Exit | None:
        """How the learner ended, as far as it can be known here.

        The kubelet ends an evicted pod's command by SIGTERM and SIGKILL, and tells the API server of it when all has
        ended. A record of such an end is therefore held back for ``KUBELET_S``, or for ``ENDED_S`` once the kubelet has
        ended the container: meanwhile it ends this helper, and the pod's status says why. So is every record of a
        container that the kubelet is ending, whatever its command has answered to the SIGTERM.
        """
        end = self._folder.exit(run)
        if end is None:
            return self._lost()
        ending = os.path.lexists(self._folder.path(f"{RUNS_FOLDER}/{run}/{pod_layout.ENDING_FILE}"))
        is_of_the_kubelet = ending or end.signal in _OF_THE_KUBELET
        if not is_of_the_kubelet or end.stop_cause or end.oom:
            return end
        held_s = ENDED_S if self._ended.is_set else KUBELET_S
        self._holds_record = abs(time.time() - end.time / 1000) < held_s
        return None if self._holds_record else end

    def _lost(self) -> Exit | None:
        """The exit of a learner whose container ended without a record; None before. The kubelet knows why it ended."""
        if not self._ended.is_set:
            return None
        log_event("learner.lost", why="its container ended without a record")
        return Exit(time=time.time_ns() // 1_000_000, lost=True)

    async def wait_ended(self) -> None:
        """Returns when the learner's container has ended. A helper that ends before would be started again."""
        while not self._ended.is_set:
            await self._ended.wait(3600)

    async def follow_control(self, intake: IntakeClient, reporter: Reporter) -> None:
        """Passes on what the platform wants, until cancelled. Heartbeats do the same, later."""
        reporter.on_stop = self._stop
        backoff = Backoff()
        last_error = ""
        while True:
            try:
                async for desired in intake.control():
                    backoff.reset()
                    last_error = ""
                    reporter.take_desired(desired)
            except WeftError as error:
                if last_error != type(error).__name__:
                    last_error = type(error).__name__
                    log_event("control.failed", kind=last_error, why=error.message)
            await backoff.wait()

    def _stop(self, mark: StopMark) -> None:
        """Writes the mark for the entry process, once. Without space it is written at the next heartbeat."""
        if mark != self._written:
            with contextlib.suppress(NoSpace, OSError):
                self._folder.write(STOP_FILE, mark._asdict())
                self._written = mark
                self.notify()
                log_event("learner.stopping", cause=mark.cause, grace_ms=mark.grace_ms)
