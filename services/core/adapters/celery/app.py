"""The Celery app of Weft: one queue, one task, nothing kept, nothing but JSON.

No result backend, no remote control, no beat: whatever a hint leads to is in the job document.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import celery

from services.core.adapters.celery import filesystem
from services.core.settings import Settings

TASK: Final = "weft.hint"
QUEUE: Final = "weft.hints"
EXPIRES_S: Final = 30
"""Seconds after which a hint is worth nothing: the sweep was there long before."""


@dataclass(frozen=True, slots=True)
class Broker:
    url: str
    """``filesystem://``, ``amqp://...``, ``redis://...``."""
    folder: Path
    """Of the filesystem transport."""

    @classmethod
    def of(cls, settings: Settings) -> Broker:
        return cls(settings.broker_url, settings.place / "broker")


def make_app(broker: Broker) -> Any:
    """A Celery app of its own: it neither reads nor becomes the process's current one."""
    app = celery.Celery("weft", set_as_current=False, fixups=[])
    app.conf.update(
        broker_url=broker.url,
        broker_transport_options={},
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=1.0,
        broker_heartbeat=10,
        task_serializer="json",
        accept_content=["json"],
        task_default_queue=QUEUE,
        task_ignore_result=True,
        # A hint that a dying worker took is worth giving to another one; it may run twice.
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
    )
    if broker.url.startswith("filesystem://"):
        app.conf.update(
            broker_url="filesystem://localhost",
            # Not in the URL: kombu refuses to import what a URL names.
            broker_transport=f"{filesystem.__name__}:Transport",
            broker_transport_options=filesystem.options(broker.folder),
        )
    elif broker.url.startswith(("redis", "rediss", "sentinel", "valkey")):
        # What a killed worker had taken is given out again after 10 s. (By default after some 100.)
        app.conf.broker_transport_options = {
            "visibility_timeout": 10,
            "unacked_restore_interval": 2,
            "unacked_restore_throttle": 1,
            "socket_connect_timeout": 1,
        }
    return app


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
