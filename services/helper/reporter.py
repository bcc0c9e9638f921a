"""Reports the learner's status to the platform, and learns whether its process may start.

Level, not edge: there is one status, and the ``seq`` that the metrics service has acknowledged. A change is sent at
once, the whole status every few seconds again (etcd may have lost it), both until acknowledged. ``seq`` rises with
every change and is saved in the spool before it is sent, so a restarted helper never reports an older status.

All text of a status passes ``storable`` here, once: no store behind the platform's border has to refuse it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from services.core.domain.checkpoint import StoredCheckpoint
from services.core.domain.codec import dump
from services.core.domain.errors import WeftError
from services.core.domain.learner import LearnerStatus
from services.core.domain.startup import Span, Step
from services.core.domain.status import PHASE_ORDER, Phase
from services.core.domain.text import storable
from services.core.runtime.learner_folder import StopMark
from services.core.runtime.retry import Backoff
from services.core.runtime.timers import aligned_pause
from services.helper.log import log_event
from services.helper.metrics_client import UNKNOWN, Desired, IntakeClient, Progress
from services.helper.spool import Spool
from services.helper.wakeup import PHASE_S, Wakeup

REPEAT_S: Final = 5.0
"""The full status is sent again so often."""
NOT_CURRENT_REPEAT_S: Final = 0.5
"""The same while the platform answers that this attempt is not the current one (etcd may have lost it for a moment)."""
BEAT_S: Final = 2.0
"""Between heartbeats without a change. Each costs a millisecond: most of what an idle helper costs."""
SHOWN_BEAT_S: Final = 1.0
"""The same while data is fetched for the learner, or it draws a progress bar: both are shown live."""
_WITH_LINES: Final = 0.5
"""Lines that are sent later than this share of the pause after a heartbeat carry the next one. If none are sent, it is
late by as much."""
GO_FIRST_S: Final = 0.02
GO_MOST_S: Final = 1.0
"""READY: how often to ask for ``go``, at first and at last. The first moments are a warm start's latency."""
ABANDONED_S: Final = 5.0
"""After another attempt has been current for so long, nothing waits for the end of this one."""
TAKE_OVER: Final = 1_000
"""A helper adds this to its predecessor's last seq: a full disk may have kept that one from saving it."""

_MESSAGE_CHARS: Final = 4_000
"""The longest message: it is written to etcd and into the job's document."""


def now_ms() -> int:
    """Unix time."""
    return time.time_ns() // 1_000_000


class Reporter:
    """``run`` is a task beside the main flow, which changes the status by ``enter`` and ``set_message``."""

    def __init__(
        self, intake: IntakeClient, spool: Spool, status: LearnerStatus, progress: Callable[[], Progress]
    ) -> None:
        self.on_stop: Callable[[StopMark], None] | None = None
        """Called with each stop that the platform answers; None: another process is responsible for stops."""
        self.status = replace(status, seq=status.seq + TAKE_OVER) if status.seq else status
        self.go = Wakeup()
        """Set once all learners of the attempt are ready: the process may start."""
        self._intake = intake
        self._spool = spool
        self._progress = progress
        self._last_error = ""
        self._changed = Wakeup()
        self._changed.set()
        self._acknowledged_seq = 0
        self._answered = Wakeup()
        self._not_current_since: float | None = None
        self._sent_progress = UNKNOWN
        self._last_beat = self._next_beat = 0.0
        """Monotonic seconds."""

    def enter(self, phase: Phase, *, at: int | None = None, **changes: Any) -> None:
        """Moves to a phase, never back, and records the time (``at``: Unix ms). ``changes``: other fields."""
        if PHASE_ORDER[phase] < PHASE_ORDER[self.status.phase]:
            phase = self.status.phase
        times = {**self.status.times}
        times.setdefault(phase.value, now_ms() if at is None else at)
        self._change(replace(self.status, phase=phase, times=times, **{"message": "", **changes}))

    def set_message(self, message: str) -> None:
        """Sets what people read as the current activity."""
        self._change(replace(self.status, message=message))

    def set_checkpoint(self, checkpoint: StoredCheckpoint) -> None:
        """Reports the newest stored checkpoint."""
        self._change(replace(self.status, checkpoint=checkpoint))

    def set_first_point(self, at: int) -> None:
        """Reports when the training wrote its first metric point, Unix ms. The first call counts."""
        if Step.FIRST_STEP not in self.status.startup:
            span = Span(began=min(at, self.status.times.get(Phase.PROCESSING.value, at)), ended=at)
            self._change(replace(self.status, startup={**self.status.startup, Step.FIRST_STEP: span}))

    def set_fields(self, **changes: Any) -> None:
        """Sets fields that are sent with the next change; they cause no report of their own."""
        self.status = replace(self.status, **changes)

    def _change(self, status: LearnerStatus) -> None:
        status = replace(status, message=storable(status.message)[:_MESSAGE_CHARS], reason=storable(status.reason))
        if status != self.status or status.seq == 0:
            self.status = replace(status, seq=status.seq + 1)
            try:
                self._spool.save_report(self.status)
            except (OSError, WeftError) as error:
                log_event("spool.failed", why=str(error))
            self._changed.set()

    async def wait_acknowledged(self, timeout: float) -> bool:
        """Waits up to ``timeout`` seconds until the platform has the present status, or the attempt is abandoned.

        Returns whether one of the two is so.
        """
        if not self._is_acknowledged and not self.is_abandoned:
            self._answered.clear()
            await self._answered.wait(timeout)
        return self._is_acknowledged or self.is_abandoned

    @property
    def is_abandoned(self) -> bool:
        """Whether another attempt has been the current one for ``ABANDONED_S``."""
        since = self._not_current_since
        return since is not None and time.monotonic() - since > ABANDONED_S

    async def run(self) -> None:
        """Sends reports and heartbeats until cancelled."""
        backoff = Backoff()
        next_report = self._next_beat = 0.0
        go_every = GO_FIRST_S
        while True:
            try:
                if self._changed.is_set or time.monotonic() >= next_report:
                    if self._changed.is_set:
                        self._next_beat = 0.0  # its answer may have changed, too
                    await self._report()
                    pause_s = REPEAT_S if self._is_acknowledged else NOT_CURRENT_REPEAT_S
                    next_report = time.monotonic() + aligned_pause(pause_s, phase_s=PHASE_S)
                if time.monotonic() >= self._next_beat:
                    await self._beat()
                    if self.status.phase is Phase.READY and not self.go.is_set:
                        self._next_beat = time.monotonic() + go_every
                        go_every = min(GO_MOST_S, go_every * 1.2)
                    else:
                        self._next_beat = time.monotonic() + aligned_pause(self._beat_pause_s, phase_s=PHASE_S)
                backoff.reset()
                self._last_error = ""
            except WeftError as error:
                if self._last_error != type(error).__name__:  # logged once: it may last for days
                    self._last_error = type(error).__name__
                    log_event("report.failed", kind=self._last_error, why=error.message)
                await backoff.wait()
                continue
            await self._changed.wait(min(next_report, self._next_beat) - time.monotonic())

    def due(self) -> Progress | None:
        """The progress for a heartbeat that is sent with lines now; None: the last one was sent a moment ago."""
        is_due = time.monotonic() - self._last_beat >= self._beat_pause_s * _WITH_LINES
        return self._progress() if is_due else None

    def record_sent(self, progress: Progress, desired: Desired) -> None:
        """Takes the answer to a heartbeat that was sent with lines. ``run`` sends the next one if no lines do."""
        self._record_beat(progress, desired)
        pause_s = self._beat_pause_s * (1 + _WITH_LINES)
        self._next_beat = self._last_beat + aligned_pause(pause_s, phase_s=PHASE_S)

    @property
    def _beat_pause_s(self) -> float:
        return SHOWN_BEAT_S if self._sent_progress.fetching or self._sent_progress.bar else BEAT_S

    async def _report(self) -> None:
        self._changed.clear()
        status = self.status
        try:
            current = await self._intake.report(json.dumps(dump(status)).encode())
        except WeftError:
            self._changed.set()
            raise
        self._record_current(current=current)
        if current:
            self._acknowledged_seq = status.seq
        self._answered.set()

    async def _beat(self) -> None:
        progress = self._progress()
        self._record_beat(progress, await self._intake.beat(progress))

    def _record_beat(self, progress: Progress, desired: Desired) -> None:
        self._sent_progress, self._last_beat = progress, time.monotonic()
        self.take_desired(desired)

    def take_desired(self, desired: Desired) -> None:
        """Acts on what the platform wants of the learner."""
        self._record_current(current=desired.current)
        if desired.stop is not None and self.on_stop is not None:
            self.on_stop(desired.stop)
        if desired.current and desired.go and self.status.phase is Phase.READY:
            self.go.set()

    @property
    def _is_acknowledged(self) -> bool:
        """Whether the platform has the present status."""
        return self._acknowledged_seq >= self.status.seq

    def _record_current(self, *, current: bool) -> None:
        if current:
            self._not_current_since = None
        elif self._not_current_since is None:
            self._not_current_since = time.monotonic()
