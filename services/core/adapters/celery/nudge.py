"""The worker's side of hints: one short call to the service it is meant for, and whatever comes of it is forgotten."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

import grpc.aio
import structlog

from services.core.adapters.rpc.client import connect, translating
from services.core.domain.errors import WeftError
from services.core.gen.weft.v1 import control_pb2, control_pb2_grpc

SERVICES: Final = {"submitted": "lcm", "released": "lcm", "desired": "guardian", "admitted": "guardian"}
_TIMEOUT_S: Final = 2.0
log = structlog.get_logger()


class Nudger:
    """Callable from any thread; the calls run in a loop on a thread of its own."""

    def __init__(self, address: Callable[[str], str], secret: bytes) -> None:
        """``address``: service -> ``host:port``, asked for each hint, because a restarted platform may have moved."""
        self._address = address
        self._secret = secret
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nudge", daemon=True)
        self._thread.start()

    def __call__(self, topic: str, job_id: str, traceparent: str) -> None:
        """Returns when the service has heard of it, or two seconds later."""
        asyncio.run_coroutine_threadsafe(self._nudge(topic, job_id, traceparent), self._loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _nudge(self, topic: str, job_id: str, traceparent: str) -> None:
        service = SERVICES.get(topic)
        if service is None:
            log.warning("hint.unknown_topic", topic=topic)
            return
        try:
            channel = self._channel(self._address(service))
            request = control_pb2.NudgeRequest(topic=topic, job_id=job_id)
            metadata = (("traceparent", traceparent),) if traceparent else ()
            with translating():
                await control_pb2_grpc.ControlStub(channel).Nudge(request, timeout=_TIMEOUT_S, metadata=metadata)
        except WeftError as error:
            log.info("hint.lost", topic=topic, job=job_id, why=error.message)
        else:
            log.debug("hint.delivered", topic=topic, job=job_id)

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = connect(address, secret=self._secret)
        return self._channels[address]

    async def _close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
