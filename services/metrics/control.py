"""What the platform wants of a learner in a pod: may it start, and shall it end?

On one machine the node agent writes a stop into the learner's folder. No service can write into a pod, so its helper
gets the same by this stream, and with each heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from services.core.domain.errors import Unavailable
from services.core.domain.tokens import LearnerIdentity
from services.metrics.attempts import Attempts, Stop
from services.metrics.following import Notifier

_RETRY_AFTER_S = 0.2


@dataclass(frozen=True, slots=True)
class Desired:
    current: bool
    """False: a newer attempt has replaced this one."""
    go: bool
    """The learner's process may start."""
    stop: Stop | None
    """It shall end."""


class Control:
    def __init__(self, attempts: Attempts, changes: Notifier, stopping: asyncio.Event, keep_alive_s: float) -> None:
        """``changes`` is notified by the view ``attempts``."""
        self._attempts, self._changes = attempts, changes
        self._stopping, self._keep_alive_s = stopping, keep_alive_s

    async def read(self, learner: LearnerIdentity) -> Desired:
        """Raises Unavailable if the current attempt is not known."""
        current, go = await self._attempts.may_go(learner)
        return Desired(current, go, self._attempts.stop(learner))

    def cached(self, learner: LearnerIdentity) -> Desired | None:
        """The answer of ``read`` where it needs no etcd: the learner was allowed to start. None: call ``read``."""
        attempt = self._attempts.cached(learner.job)
        if attempt is None or attempt.number != learner.attempt or not self._attempts.is_started(learner):
            return None
        return Desired(current=True, go=True, stop=self._attempts.stop(learner))

    async def follow(self, learner: LearnerIdentity) -> AsyncGenerator[Desired]:
        """Yields at once, after each change, and after ``keep_alive_s`` seconds of silence.

        Raises Unavailable as ``read``, and when the service stops.
        """
        sent: Desired | None = None
        while not self._stopping.is_set():
            changed = self._changes.listen(learner.job)
            desired = await self._read_if_needed(learner, sent)
            if desired != sent:
                sent = desired
                yield desired
            elif not await self._wait(changed):
                yield desired
        raise Unavailable("the metrics service is stopping; call again", retry_after_s=_RETRY_AFTER_S)

    async def _read_if_needed(self, learner: LearnerIdentity, sent: Desired | None) -> Desired:
        """``read``; the view alone while it shows that a read would not change the answer."""
        attempt = self._attempts.cached(learner.job)
        is_unchanged = attempt is not None and attempt.number == learner.attempt
        if sent is None or attempt is None or not is_unchanged:
            return await self.read(learner)
        if not sent.go and self._attempts.all_ready(learner.job, attempt):
            return await self.read(learner)
        return Desired(sent.current, sent.go, self._attempts.stop(learner))

    async def _wait(self, changed: asyncio.Event) -> bool:
        """Waits for the event or the stop of the service. False if neither came within ``keep_alive_s``."""
        waits = [asyncio.ensure_future(event.wait()) for event in (changed, self._stopping)]
        try:
            done, _ = await asyncio.wait(waits, timeout=self._keep_alive_s, return_when=asyncio.FIRST_COMPLETED)
            return bool(done)
        finally:
            for wait in waits:
                wait.cancel()
