"""The Celery app of Weft: one queue, one task, nothing kept, nothing but JSON.

No result backend, no remote control, no beat: whatever a hint leads to is in the job document. The transports are
kombu's own, set by options; a queue is bounded by RabbitMQ itself, elsewhere by its senders.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import celery
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer
from kombu.transport import virtual

from services.core.adapters.celery.broker import QUEUE_AT_MOST, RABBITMQ, REDIS, Broker
from services.core.domain.errors import ResourceExhausted

TASK: Final = "weft.hint"
QUEUE: Final = "weft.hints"
EXPIRES_S: Final = 30
"""Seconds after which a hint is worth nothing: the sweep was there long before."""
_CONNECT_S: Final = 2.0
_SENDER_S: Final = 2.0
"""How long one step of a sender may wait for a broker that is there before the connection counts as broken."""
_WORKER_S: Final = 5.0
"""The same for the worker. Longer than Redis keeps it waiting for a hint (1 s)."""
_HEARTBEAT_S: Final = 10


def make_app(broker: Broker, *, works: bool = False) -> Any:
    """A Celery app of its own: it neither reads nor becomes the process's current one. ``works``: the worker's."""
    app = celery.Celery("weft", set_as_current=False, fixups=[])
    app.conf.update(
        broker_url=broker.url,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=_CONNECT_S,
        task_serializer="json",
        accept_content=["json"],
        task_default_queue=QUEUE,
        task_queues=[_queue()],
        task_ignore_result=True,
        # A hint that a dying worker took is worth giving to another one; it may run twice.
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_enable_remote_control=False,
        worker_enable_prefetch_count_reduction=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
    )
    app.conf.update(_of_transport(broker, works=works))
    return app


def _queue() -> Queue:
    # Through the nameless exchange: nothing is bound, so there is no table of bindings to be lost or garbled. RabbitMQ
    # keeps the bounds itself, and drops the oldest; of the others, see `Sender`.
    return Queue(QUEUE, Exchange(""), routing_key=QUEUE, message_ttl=EXPIRES_S, max_length=QUEUE_AT_MOST)  # type: ignore[no-untyped-call]


def _of_transport(broker: Broker, *, works: bool) -> dict[str, Any]:
    timeout_s = _WORKER_S if works else _SENDER_S
    if broker.kind == RABBITMQ:
        return {
            # A sender's connection lies idle for hours, and nobody would answer heartbeats on it.
            "broker_heartbeat": _HEARTBEAT_S if works else 0,
            "broker_transport_options": {"read_timeout": timeout_s, "write_timeout": timeout_s},
        }
    if broker.kind == REDIS:
        return {
            # What a killed worker had taken is given out again after 10 s. (By default after an hour.)
            "broker_transport_options": {
                "visibility_timeout": 10,
                # Looked for at every second wait for a message, of half a second each.
                "unacked_restore_throttle": 2,
                "socket_connect_timeout": _CONNECT_S,
                "socket_timeout": timeout_s,
                "health_check_interval": 5,
            },
        }
    # With a host, or kombu warns that there is none.
    return {
        "broker_url": "filesystem://localhost",
        "broker_transport": "services.core.adapters.celery.folder:Transport",
        "broker_transport_options": _of_folder(broker.folder),
    }


def _of_folder(folder: Path) -> dict[str, Any]:
    """Makes the folders, which only this user can read."""
    for part in ("queue", "control"):
        (folder / part).mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        "data_folder_in": str(folder / "queue"),
        "data_folder_out": str(folder / "queue"),
        "control_folder": str(folder / "control"),
    }


def on_hint(app: Any, act: Callable[[str, str, str], None]) -> None:
    """Registers what a worker does with a hint: ``act(topic, job_id, traceparent)``."""

    @app.task(name=TASK, ignore_result=True)  # type: ignore[untyped-decorator, unused-ignore]
    def hint(topic: str, job_id: str, traceparent: str = "", *_: Any) -> None:
        act(topic, job_id, traceparent)


class Sender:
    """Sends hints over one connection of its own, from one thread.

    Celery keeps its connections in pools that all apps of a process share, and leaves them open when an app closes.
    """

    def __init__(self, broker: Broker) -> None:
        self._app = make_app(broker)
        self._connection: Any = None
        self._producer: Any = None

    def send(self, topic: str, job_id: str, traceparent: str) -> None:
        """Blocks. Raises ResourceExhausted where the queue is full, and any error of the broker's library."""
        if self._connection is None:
            self._connection = self._app.connection_for_write()
            self._producer = Producer(self._connection)  # type: ignore[no-untyped-call]
        # One retry, at once: after a restart of the broker the connection is dead.
        publish = self._connection.ensure(
            self._producer, self._publish, max_retries=1, interval_start=0, interval_max=0
        )
        try:
            publish((topic, job_id, traceparent))
        except ResourceExhausted:
            raise  # the connection is as good as before
        except BaseException:
            self._disconnect()  # or the next hint would be sent over a channel that is closed
            raise

    def _publish(self, arguments: tuple[str, str, str]) -> None:
        # A folder and a list in Redis have no end: without a worker they would grow until the disk or memory is full.
        unbounded = isinstance(self._producer.channel, virtual.Channel)
        if unbounded and self._producer.channel.queue_declare(QUEUE).message_count >= QUEUE_AT_MOST:
            raise ResourceExhausted(f"{QUEUE_AT_MOST} hints wait, and no worker takes them")
        self._app.send_task(
            TASK, args=arguments, expires=EXPIRES_S, delivery_mode="transient", producer=self._producer, retry=False
        )

    def close(self) -> None:
        """Closes the connection without a call to the broker, which may hang."""
        self._disconnect()
        self._app.close()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.collect()
            self._connection = self._producer = None
