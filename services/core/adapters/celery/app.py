"""The Celery app of Weft: one queue, one task, nothing kept, nothing but JSON.

No result backend, no remote control, no beat: whatever a hint leads to is in the job document.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import celery
from kombu.entity import Exchange, Queue

from services.core.adapters.celery import filesystem, redis
from services.core.adapters.celery.broker import QUEUE_AT_MOST, RABBITMQ, REDIS, Broker

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
    # keeps the bounds itself; the other transports are made to (filesystem.py, redis.py).
    return Queue(QUEUE, Exchange(""), routing_key=QUEUE, message_ttl=EXPIRES_S, max_length=QUEUE_AT_MOST)  # type: ignore[no-untyped-call]


def _of_transport(broker: Broker, *, works: bool) -> dict[str, Any]:
    patience_s = _WORKER_S if works else _SENDER_S
    if broker.kind == RABBITMQ:
        return {
            # A sender's connection lies idle for hours, and nobody would answer heartbeats on it.
            "broker_heartbeat": _HEARTBEAT_S if works else 0,
            "broker_transport_options": {"read_timeout": patience_s, "write_timeout": patience_s},
        }
    if broker.kind == REDIS:
        return {
            "broker_transport": f"{redis.__name__}:Transport",
            # What a killed worker had taken is given out again after 10 s. (By default after some 100.)
            "broker_transport_options": {
                "visibility_timeout": 10,
                "unacked_restore_interval": 2,
                "unacked_restore_throttle": 1,
                "socket_connect_timeout": _CONNECT_S,
                "socket_timeout": patience_s,
                "health_check_interval": 5,
            },
        }
    return {
        "broker_url": "filesystem://localhost",
        # Not in the URL: kombu refuses to import what a URL names.
        "broker_transport": f"{filesystem.__name__}:Transport",
        "broker_transport_options": filesystem.options(broker.folder),
    }


def on_hint(app: Any, act: Callable[[str, str, str], None]) -> None:
    """Registers what a worker does with a hint: ``act(topic, job_id, traceparent)``."""

    @app.task(name=TASK, ignore_result=True)  # type: ignore[untyped-decorator, unused-ignore]
    def hint(topic: str, job_id: str, traceparent: str = "", *_: Any) -> None:
        act(topic, job_id, traceparent)


def send(app: Any, topic: str, job_id: str, traceparent: str) -> None:
    """Blocks; raises whatever the broker's library raises."""
    app.send_task(
        TASK,
        args=(topic, job_id, traceparent),
        expires=EXPIRES_S,
        delivery_mode="transient",
        # Once more, at once: a broker that was restarted has left a dead connection in the pool.
        retry=True,
        retry_policy={"max_retries": 1, "interval_start": 0, "interval_max": 0},
    )
