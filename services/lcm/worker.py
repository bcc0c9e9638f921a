"""The Celery worker: carries hints to the services, and is nothing more. ``python -m services.lcm.worker``.

Threads, not processes: gRPC does not survive a fork. Not Celery's own program: its banner, its root logger and its
signals are not ours. When it dies, hints are late by a sweep.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any, Final

import structlog
from celery.exceptions import CPendingDeprecationWarning
from celery.worker import WorkController, state

from services.core.adapters.celery.app import make_app, on_hint
from services.core.adapters.celery.broker import FOLDER, RABBITMQ, Broker
from services.core.adapters.celery.consumer import BrokerConnection, consumer_class
from services.core.adapters.celery.nudge import Nudger
from services.core.adapters.rpc.hints import Nudges
from services.core.bootstrap import wiring
from services.core.bootstrap.service import (
    Service,
    configure_logging,
    http_server,
    operations_app,
    serve_http,
    watch_failpoints,
)
from services.core.domain.errors import WeftError
from services.core.failpoints.ports import at_failpoint
from services.core.runtime.settings import Settings

_AT_ONCE: Final = 4
"""Hints under way at once; each waits for a service for at most two seconds."""
_PULSE_S: Final = 0.25
_DRAIN_S: Final = 8
"""What is under way when the worker is told to end may take so long, then it is left: as with a broker that hangs."""
log = structlog.get_logger()


def main() -> int:
    """Runs until SIGTERM; the exit code."""
    settings = Settings()
    configure_logging("worker", settings.log_level)
    watch_failpoints("worker")
    _bring_in_line(logging.getLogger())
    try:
        broker = Broker.of(settings)
        nudges = Nudges(settings.installation.address, asyncio.run(wiring.service_secret(settings)))
        nudger = Nudger(at_failpoint(nudges, "services", "worker"))
        operations = settings.installation.address("worker-ops")
    except WeftError as error:
        log.error("service.cannot_run", why=[error.message])  # noqa: TRY400 - no trace for people
        return 1
    connection = BrokerConnection()
    service = Service("worker", settings, checks={"broker": connection.ping}, started=True)
    serving = nudger.run(serve_http(http_server(operations_app(service), operations), service.stopping))
    app = make_app(broker, works=True)
    on_hint(app, nudger)
    worker = WorkController(
        app=app,
        pool_cls="threads",
        concurrency=_AT_ONCE,
        hostname="weft@localhost",
        consumer_cls=consumer_class(connection),
        # For the heartbeats of RabbitMQ. The other transports are drained, so that what they cannot read ends nothing.
        use_eventloop=broker.kind == RABBITMQ,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    if broker.kind == FOLDER:
        _take_in_private(broker.folder / "taken")
    log.info("service.starting")
    if not _run(worker):
        # A thread that waits for a broker cannot be told to end. What it carries may be lost.
        log.warning("service.left", why=f"what was under way has not ended within {_DRAIN_S} s")
        os._exit(0)
    nudger.loop.call_soon_threadsafe(service.stopping.set)
    serving.result()
    nudger.close()
    log.info("service.stopped")
    return int(worker.exitcode or 0)


def _run(worker: Any) -> bool:
    """Until SIGTERM; then what is under way is finished. False: it was not, within its time.

    On a thread of its own: a broker that hangs keeps it for seconds, and the main thread of a process that lives is
    never silent for so long (services.core.runtime.liveness).
    """
    stopping = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: stopping.set())
    thread = threading.Thread(target=worker.start, name="worker", daemon=True)
    thread.start()
    while thread.is_alive() and not stopping.wait(_PULSE_S):
        pass
    # Celery's loop looks at this between two messages, once it is awake.
    state.should_stop = 0
    if worker.hub is not None:
        worker.hub.call_soon(lambda: None)
    deadline = time.monotonic() + _DRAIN_S
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(_PULSE_S)
    return not thread.is_alive()


def _take_in_private(folder: Path) -> None:
    """Gives this process a temporary folder of its own: kombu moves each message through it.

    What is left in it by a worker that was killed is lost, as hints may be.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in folder.iterdir():
        left.unlink(missing_ok=True)
    tempfile.tempdir = str(folder)


def _bring_in_line(root: logging.Logger) -> None:
    """What Celery logs (its troubles only) in the form of our own lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    # They say of each lost connection what our consumer says once, and of each hint given back at the end that it was.
    for chatty in ("celery.worker.consumer", "kombu.transport.virtual"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    logging.captureWarnings(capture=True)
    # That hints under way are not cancelled with the connection they came by: they take two seconds at most.
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)


if __name__ == "__main__":
    sys.exit(main())
