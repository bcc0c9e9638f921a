"""Telling the platform how its learner is, and asking whether it may go on.

Level, not edge: there is one state, and what the metrics service has acknowledged of it. A change is sent at once, the
whole state every few seconds again (etcd may have forgotten it), both until acknowledged. ``seq`` rises with every
change and is in the spool before it is sent, so that a restarted helper never says something older.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from services.core.domain.codec import dump
from services.core.domain.errors import WeftError
from services.core.domain.learner import LearnerStatus
from services.core.domain.status import PHASE_ORDER, Phase
from services.helper.journal import note
from services.helper.metrics_client import Backoff, Intake
from services.helper.spool import Spool
from services.helper.wakeup import Wakeup

AGAIN_S: Final = 5.0
"""The full state is sent again so often."""
UNKNOWN_AGAIN_S: Final = 0.5
"""The same while the platform answers that this attempt is not the current one (etcd may have lost it for a moment)."""
BEAT_S: Final = 2.0
"""A sign of life while nothing changes. Each costs a millisecond, so this is most of what an idle helper costs."""
PROGRESS_S: Final = 1.0
"""The same of a learner that tells its progress."""
GO_FIRST_S: Final = 0.02
GO_MOST_S: Final = 1.0
"""READY: how often to ask for ``go``, at first and at last. The first moments are a warm start's latency."""
ABANDONED_S: Final = 5.0
"""Another attempt is current, and has been for so long: nobody waits for this one's end."""
TAKE_OVER: Final = 1_000
"""A helper adds this to its predecessor's last seq: with a full disk, that one may not have been able to save it."""


def now_ms() -> int:
    """Unix time."""
    return time.time_ns() // 1_000_000


class Reporter:
    """Runs as a task beside the main flow, which changes the state by ``enter`` and ``say``."""

    def __init__(
        self, intake: Intake, spool: Spool, status: LearnerStatus, progress: Callable[[], tuple[float, int]]
    ) -> None:
        self.status = replace(status, seq=status.seq + TAKE_OVER) if status.seq else status
        self.go = Wakeup()
        self._intake = intake
        self._spool = spool
        self._progress = progress
        self._trouble = ""
        self._changed = Wakeup()
        self._changed.ring()
        self._acknowledged = 0
        self._heard = Wakeup()
        self._not_current_since: float | None = None
        self._told_progress: tuple[float, int] = (-1.0, -1)

    def enter(self, phase: Phase, *, at: int | None = None, **changes: Any) -> None:
        """Goes on to a phase (never back), remembering when."""
        if PHASE_ORDER[phase] < PHASE_ORDER[self.status.phase]:
            phase = self.status.phase
        times = {**self.status.times}
        times.setdefault(phase.value, now_ms() if at is None else at)
        self._change(replace(self.status, phase=phase, times=times, **{"message": "", **changes}))

    def say(self, message: str) -> None:
        """What is going on, for people."""
        self._change(replace(self.status, message=message))

    def note(self, **changes: Any) -> None:
        """Facts that matter with the next change of phase; not worth a message of their own."""
        self.status = replace(self.status, **changes)

    def _change(self, status: LearnerStatus) -> None:
        if status != self.status or status.seq == 0:
            self.status = replace(status, seq=status.seq + 1)
            try:
                self._spool.save_report(self.status)
            except OSError as error:
                note("spool.failed", why=str(error))
            self._changed.ring()

    async def told(self, timeout: float) -> bool:
        """Whether the platform knows the present state, or will never want to, at most so long from now."""
        if not self._known and not self.abandoned:
            self._heard.clear()
            await self._heard.wait(timeout)
        return self._known or self.abandoned

    @property
    def abandoned(self) -> bool:
        """Whether another attempt has taken this one's place for good."""
        since = self._not_current_since
        return since is not None and time.monotonic() - since > ABANDONED_S

    async def run(self) -> None:
        backoff = Backoff()
        next_report = next_beat = 0.0
        go_every = GO_FIRST_S
        while True:
            try:
                if self._changed.rung or time.monotonic() >= next_report:
                    await self._report()
                    next_report = time.monotonic() + (AGAIN_S if self._known else UNKNOWN_AGAIN_S)
                    next_beat = 0.0
                if time.monotonic() >= next_beat:
                    await self._beat()
                    if self.status.phase is Phase.READY and not self.go.rung:
                        next_beat = time.monotonic() + go_every
                        go_every = min(GO_MOST_S, go_every * 1.2)
                    else:
                        next_beat = time.monotonic() + (BEAT_S if self._told_progress[0] < 0 else PROGRESS_S)
                backoff.reset()
                self._trouble = ""
            except WeftError as error:
                if self._trouble != type(error).__name__:  # once: it may last for days
                    self._trouble = type(error).__name__
                    note("report.failed", kind=self._trouble, why=error.message)
                await backoff.wait()
                continue
            await self._changed.wait(min(next_report, next_beat) - time.monotonic())

    async def _report(self) -> None:
        self._changed.clear()
        status = self.status
        try:
            current = await self._intake.report(json.dumps(dump(status)).encode())
        except WeftError:
            self._changed.ring()
            raise
        self._note_current(current=current)
        if current:
            self._acknowledged = status.seq
        self._heard.ring()

    async def _beat(self) -> None:
        told = self._progress()
        reply = await self._intake.beat(*told)
        self._told_progress = told
        self._note_current(current=reply.current)
        if reply.current and reply.go and self.status.phase is Phase.READY:
            self.go.ring()

    @property
    def _known(self) -> bool:
        """Whether the platform has acknowledged the present state."""
        return self._acknowledged >= self.status.seq

    def _note_current(self, *, current: bool) -> None:
        if current:
            self._not_current_since = None
        elif self._not_current_since is None:
            self._not_current_since = time.monotonic()
