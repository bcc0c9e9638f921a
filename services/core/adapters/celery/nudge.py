"""The worker's side of hints: one short call to the service it is meant for, and whatever comes of it is forgotten."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import structlog

from services.core.adapters.rpc.hints import Nudges
from services.core.domain.errors import InvalidRequest, WeftError

log = structlog.get_logger()


class Nudger:
    """Callable from any thread; the calls run in a loop on a thread of its own."""

    def __init__(self, address: Callable[[str], str], secret: bytes) -> None:
        """``address``: see ``Nudges``."""
        self._nudges = Nudges(address, secret)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nudge", daemon=True)
        self._thread.start()

    def __call__(self, topic: str, job_id: str, traceparent: str) -> None:
        """Returns when the service has heard of it, or two seconds later."""
        asyncio.run_coroutine_threadsafe(self._nudge(topic, job_id, traceparent), self._loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._nudges.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _nudge(self, topic: str, job_id: str, traceparent: str) -> None:
        try:
            await self._nudges.nudge(topic, job_id, traceparent)
        except InvalidRequest:
            log.warning("hint.unknown_topic", topic=topic)
        except WeftError as error:
            log.info("hint.lost", topic=topic, job=job_id, why=error.message)
        else:
            log.debug("hint.delivered", topic=topic, job=job_id)
