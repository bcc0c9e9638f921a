"""The sender's side of hints. A service never waits for the broker, and never fails with it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

import structlog

from services.core.adapters.celery.broker import Broker
from services.core.adapters.hint_instrumentation import DROPPED, SENT
from services.core.runtime.outcomes import outcome_of
from services.core.runtime.settings import Settings

if TYPE_CHECKING:
    from services.core.adapters.celery.app import Sender

_PENDING_AT_MOST: Final = 1000
"""Hints that wait for a broker which does not answer; those beyond are dropped."""
_GOODBYE_S: Final = 1.0
log = structlog.get_logger()


class CeleryHints:
    """Sends from a thread of its own, in the order given. Celery is imported there too, at the first hint."""

    def __init__(self, settings: Settings) -> None:
        """InvalidRequest for a broker that Weft does not know."""
        self._broker = Broker.of(settings)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hints")
        self._sender: Sender | None = None
        self._pending: set[Future[None]] = set()
        self._sent = 0
        self._dropped = 0
        self._failing = False

    @property
    def sent(self) -> int:
        return self._sent

    @property
    def dropped(self) -> int:
        return self._dropped

    async def send(self, topic: str, job_id: str) -> None:
        traceparent = str(structlog.contextvars.get_contextvars().get("traceparent", ""))
        if len(self._pending) >= _PENDING_AT_MOST:
            self._drop()
            return
        try:
            future = self._thread.submit(self._send, topic, job_id, traceparent)
        except RuntimeError:  # closed
            self._drop()
            return
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)  # one that has ended is gone at once

    def _drop(self) -> None:
        self._dropped += 1
        DROPPED.inc()

    async def close(self) -> None:
        """Gives what is on its way a second to leave, and the connection another one to be closed."""
        try:
            # By the thread that uses the connection: one that is closed while a hint is sent would be left open.
            closed = self._thread.submit(self._close_sender)
        except RuntimeError:  # it was closed before
            return
        self._thread.shutdown(wait=False)
        await asyncio.to_thread(wait, [closed], timeout=_GOODBYE_S)
        for future in tuple(self._pending):
            future.cancel()
        await asyncio.to_thread(wait, [closed], timeout=_GOODBYE_S)

    def _close_sender(self) -> None:
        if self._sender is not None:
            self._sender.close()

    def _send(self, topic: str, job_id: str, traceparent: str) -> None:
        # A hint never harms its sender: whatever the broker's library raises is counted and logged.
        error = outcome_of(lambda: self._send_to_broker(topic, job_id, traceparent)).error
        if error is not None:
            self._drop()
            if not self._failing:
                log.warning("hints.dropped", why=str(error) or type(error).__name__)
        else:
            self._sent += 1
            SENT.inc()
        self._failing = error is not None

    def _send_to_broker(self, topic: str, job_id: str, traceparent: str) -> None:
        from services.core.adapters.celery.app import Sender  # noqa: PLC0415 - see the class

        if self._sender is None:
            self._sender = Sender(self._broker)
        self._sender.send(topic, job_id, traceparent)


class DropHints:
    """Loses every hint, to show that nothing depends on them."""

    def __init__(self) -> None:
        self._dropped = 0

    @property
    def sent(self) -> int:
        return 0

    @property
    def dropped(self) -> int:
        return self._dropped

    async def send(self, topic: str, job_id: str) -> None:  # noqa: ARG002 - the port's
        self._dropped += 1
        DROPPED.inc()

    async def close(self) -> None:
        return
