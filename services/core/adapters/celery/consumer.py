"""Celery's consumer, for hints: nothing but a hint gets past it, and a broker that is away is tried until it is back.

kombu's transports for Redis and folders raise what they cannot read out of the worker's loop, which would end the
worker: ``Vetted`` drops it there.

Celery asks less and less often, up to half a minute apart, and logs each time; here it is every two seconds, and one
line when the broker is gone and one when it is back. Whatever happens to a connection, the worker stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import structlog
from celery.utils.log import get_logger
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown

from services.core.adapters.celery import poison
from services.core.adapters.celery.app import TASK
from services.core.domain.codec import MALFORMED
from services.core.domain.errors import Unavailable

_AGAIN_S: Final = 2.0
_WAIT_S: Final = 0.5
"""For a message, before the worker looks whether it should end; also between two looks at a folder, where nothing
urgent comes by. Shorter than Redis keeps it waiting (1 s): only while nothing at all comes does kombu look for messages
that a killed worker had taken."""
log = structlog.get_logger()


class BrokerConnection:
    """Whether the broker is there, as the worker last saw it. One per process."""

    def __init__(self) -> None:
        self._away = "not connected yet"

    def back(self) -> None:
        if self._away:
            log.info("broker.connected")
        self._away = ""

    def away(self, why: str) -> None:
        if not self._away or self._away == "not connected yet":
            log.warning("broker.disconnected", why=why)
        self._away = why

    async def ping(self) -> None:
        """Unavailable with what the library said."""
        if self._away:
            raise Unavailable(f"the broker of WEFT_BROKER_URL is away: {self._away}")


class Vetted:
    """A connection whose unreadable messages are dropped and counted. Celery's loop without an event loop drains it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def drain_events(self, timeout: float) -> None:
        """TimeoutError where none came."""
        try:
            self._connection.drain_events(timeout=min(timeout, _WAIT_S))
        except MALFORMED:  # taken from the broker, and that is the end of it
            poison.dropped(poison.Poisoned("format"))


def consumer_class(broker: BrokerConnection) -> type[Consumer]:
    """For ``WorkController(consumer_cls=...)``, which makes the object itself."""

    class HintConsumer(Consumer):  # type: ignore[misc, unused-ignore]
        def ensure_connected(self, conn: Any) -> Any:
            def failed(error: BaseException, _interval: float) -> None:
                broker.away(str(error) or type(error).__name__)

            # Between two tries it looks whether it should end.
            return conn.ensure_connection(
                failed, None, interval_start=_AGAIN_S, interval_step=0, interval_max=_AGAIN_S, callback=maybe_shutdown
            )

        def loop_args(self) -> tuple[Any, ...]:
            consumer, connection, *others = super().loop_args()
            return consumer, connection if self.hub else Vetted(connection), *others

        def on_ready(self) -> None:
            super().on_ready()
            broker.back()

        def on_connection_error_before_connected(self, exc: BaseException) -> None:
            broker.away(str(exc) or type(exc).__name__)

        def on_connection_error_after_connected(self, exc: BaseException) -> None:
            broker.away(str(exc) or type(exc).__name__)
            super().on_connection_error_after_connected(exc)

        def create_task_handler(self, *args: Any, **kwargs: Any) -> Any:
            accept = super().create_task_handler(*args, **kwargs)

            def vet(message: Any) -> None:
                try:
                    poison.hint(TASK, message.body, message.content_type, message.headers)
                    _accepted(accept, message)
                except poison.Poisoned as poisoned:
                    poison.dropped(poisoned, poison.size(message.body))
                    message.reject_log_error(get_logger(__name__), self.connection_errors)

            return vet

        def on_decode_error(self, message: Any, exc: BaseException) -> None:  # noqa: ARG002 - Celery's
            poison.dropped(poison.Poisoned("format"), poison.size(message.body))
            message.ack()

        def on_invalid_task(self, body: Any, message: Any, exc: BaseException) -> None:  # noqa: ARG002 - Celery's
            poison.dropped(poison.Poisoned("arguments"), poison.size(message.body))
            message.reject_log_error(get_logger(__name__), self.connection_errors)

    return HintConsumer


def _accepted(accept: Callable[[Any], None], message: Any) -> None:
    try:
        accept(message)
    except MALFORMED:
        raise poison.Poisoned("format") from None
