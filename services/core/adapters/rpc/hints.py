"""Hints straight to the service they are for: where its address is known, no broker is needed in between.

``Nudges`` is one short call, and raises what goes wrong with it; Celery's worker makes it for others. ``RpcHints`` is
the Hints port on top: it never waits for the call and never fails with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from services.core.adapters.hint_instrumentation import DROPPED, SENT
from services.core.adapters.rpc.client import Channels, Credential, translating
from services.core.domain.errors import InvalidRequest, Unavailable
from services.core.gen.weft.v1 import control_pb2, control_pb2_grpc
from services.core.ports.hints import Hints
from services.core.runtime.address import Address

SERVICES: Final = {"submitted": "lcm", "released": "lcm", "desired": "guardian", "admitted": "guardian"}
"""Topic -> who wants to hear of it."""
_TIMEOUT_S: Final = 2.0
_PENDING_AT_MOST: Final = 1000
"""Hints on their way to a service that does not answer; those beyond are dropped."""
_GOODBYE_S: Final = 1.0
log = structlog.get_logger()


class Nudges:
    def __init__(self, address: Callable[[str], Address], credential: Callable[[str], Credential]) -> None:
        """``address``: service -> address, read for each hint, because a restarted platform may have moved.

        ``credential``: service -> the credential for calls of it.
        """
        self._address = address
        self._channels = {service: Channels(credential(service)) for service in set(SERVICES.values())}

    async def nudge(self, topic: str, job_id: str, traceparent: str) -> None:
        """Returns when the service has heard of it. InvalidRequest for a topic nobody listens to; Unavailable."""
        service = SERVICES.get(topic)
        if service is None:
            raise InvalidRequest(f"there is no topic '{topic}'; there are: {', '.join(SERVICES)}")
        channel = self._channels[service].to(self._address(service))
        request = control_pb2.NudgeRequest(topic=topic, job_id=job_id)
        metadata = (("traceparent", traceparent),) if traceparent else ()
        with translating():
            await control_pb2_grpc.ControlStub(channel).Nudge(request, timeout=_TIMEOUT_S, metadata=metadata)

    async def close(self) -> None:
        """Cuts off what is under way."""
        for channels in self._channels.values():
            await channels.close()


class RpcHints:
    """See ``services.core.ports.hints.Hints``."""

    def __init__(
        self,
        address: Callable[[str], Address],
        credential: Callable[[str], Credential],
        *,
        otherwise: Hints | None = None,
    ) -> None:
        """``otherwise``: sends the hints whose service did not answer; closed with this. None: they are dropped."""
        self._nudges = Nudges(address, credential)
        self._otherwise = otherwise
        self._pending: set[asyncio.Task[None]] = set()
        self._sent = 0
        self._dropped = 0
        self._failing = False
        self._closed = False

    @property
    def sent(self) -> int:
        return self._sent + (self._otherwise.sent if self._otherwise else 0)

    @property
    def dropped(self) -> int:
        return self._dropped + (self._otherwise.dropped if self._otherwise else 0)

    async def send(self, topic: str, job_id: str) -> None:
        traceparent = str(structlog.contextvars.get_contextvars().get("traceparent", ""))
        if self._closed or len(self._pending) >= _PENDING_AT_MOST:
            self._drop()
            return
        task = asyncio.create_task(self._send(topic, job_id, traceparent))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def close(self) -> None:
        """Gives what is on its way a second to arrive."""
        self._closed = True
        if self._pending:
            await asyncio.wait(self._pending, timeout=_GOODBYE_S)
        await self._nudges.close()
        await asyncio.gather(*self._pending)
        if self._otherwise is not None:
            await self._otherwise.close()

    async def _send(self, topic: str, job_id: str, traceparent: str) -> None:
        try:
            await self._nudges.nudge(topic, job_id, traceparent)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a hint never harms its sender
            if isinstance(error, Unavailable) and self._otherwise is not None and not self._closed:
                # Not urgent any more: a service that comes back looks at everything by itself.
                await self._otherwise.send(topic, job_id)
                return
            self._drop()
            if not self._failing:
                log.warning("hints.dropped", topic=topic, why=str(error) or type(error).__name__)
            self._failing = True
        else:
            self._sent += 1
            SENT.inc()
            self._failing = False

    def _drop(self) -> None:
        self._dropped += 1
        DROPPED.inc()
