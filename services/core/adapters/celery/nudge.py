"""The worker's side of hints: one short call to the service it is meant for, and whatever comes of it is forgotten."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final

import structlog

from services.core.adapters.hint_instrumentation import DELIVERED, LOST, POISONED
from services.core.adapters.rpc.hints import Nudges
from services.core.domain.errors import InvalidRequest, WeftError

_SHOWN: Final = 40
log = structlog.get_logger()


class Nudger:
    """Callable from any thread; the calls run in a loop on a thread of its own."""

    def __init__(self, nudges: Nudges) -> None:
        self._nudges = nudges
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="nudge", daemon=True)
        self._thread.start()

    def __call__(self, topic: str, job_id: str, traceparent: str) -> None:
        """Returns when the service has heard of it, or two seconds later."""
        asyncio.run_coroutine_threadsafe(self._nudge(topic, job_id, traceparent), self.loop).result()

    def run(self, coroutine: Coroutine[Any, Any, None]) -> Future[None]:
        """Beside the calls, in their loop; ends with it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._nudges.close(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _nudge(self, topic: str, job_id: str, traceparent: str) -> None:
        try:
            await self._nudges.nudge(topic, job_id, traceparent)
        except InvalidRequest:
            POISONED.labels("topic").inc()
            log.warning("hint.topic_refused", topic=topic[:_SHOWN])
        except WeftError as error:
            LOST.inc()
            log.info("hint.lost", topic=topic, job=job_id, why=error.message)
        else:
            DELIVERED.inc()
            log.debug("hint.delivered", topic=topic, job=job_id)
