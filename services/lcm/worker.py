"""The Celery worker: passes hints on to the services. ``python -m services.lcm.worker``.

It runs threads, not processes, because gRPC does not survive a fork. It does not start Celery's own program, because
that has its own banner, root logger and signal handlers. While the worker is away, hints are late by one sweep.
"""

from __future__ import annotations

import asyncio
import logging
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
from services.core.bootstrap.log import configure_logging
from services.core.bootstrap.service import Service, end_process, load, operations_server, watch_failpoints
from services.core.domain.errors import WeftError
from services.core.failpoints.ports import at_failpoint
from services.core.runtime.garbage_collection import end_of_imports
from services.core.runtime.settings import Settings

_AT_ONCE: Final = 4
"""Threads that pass hints on; each waits for a service for at most two seconds."""
_POLL_S: Final = 0.5
"""A main thread that is silent for longer could count as hung."""
_DRAIN_S: Final = 8
"""After SIGTERM, hints under way get so long; then they are abandoned, e.g. if the broker hangs."""
log = structlog.get_logger()


def main() -> int:
    """Runs until SIGTERM. Returns the exit code."""
    settings = load("worker", Settings)
    configure_logging("worker", settings.log_level)
    watch_failpoints("worker")
    end_of_imports()
    _format_celery_logs(logging.getLogger())
    try:
        broker = Broker.of(settings)
        nudges = Nudges(settings.installation.address, asyncio.run(wiring.identity(settings, "worker")).credential)
        nudger = Nudger(at_failpoint(nudges, "services", "worker"))
        connection = BrokerConnection()
        service = Service("worker", settings, checks={"broker": connection.ping}, started=True)
        operations = operations_server(service)
    except WeftError as error:
        log.error("service.start_refused", why=[error.message])  # noqa: TRY400 - a trace would not help
        return 1
    serving = nudger.run(operations.serve(service.stopping))
    app = make_app(broker, works=True)
    on_hint(app, nudger)
    worker = WorkController(
        app=app,
        pool_cls="threads",
        concurrency=_AT_ONCE,
        hostname="weft@localhost",
        consumer_cls=consumer_class(connection),
        # RabbitMQ needs the event loop for heartbeats. Other transports are drained, so that a message that cannot be
        # read does not end the worker.
        use_eventloop=broker.kind == RABBITMQ,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    if broker.kind == FOLDER:
        _use_own_temporary_folder(broker.folder / "taken")
    log.info("service.starting")
    stopping = threading.Event()
    serving.add_done_callback(lambda _: stopping.set())  # it could not listen at its address
    if not _run(worker, stopping):
        # A thread that waits for a broker cannot be stopped. Its hint may be lost.
        log.warning("worker.hints_abandoned", why=f"hints under way were not sent within {_DRAIN_S} s")
        end_process(0)
    nudger.loop.call_soon_threadsafe(service.stopping.set)
    try:
        serving.result()
    except WeftError as error:
        log.error("service.start_refused", why=[error.message])  # noqa: TRY400 - as above
        return 1
    finally:
        nudger.close()
    log.info("service.stopped")
    return int(worker.exitcode or 0)


def _run(worker: Any, stopping: threading.Event) -> bool:
    """Runs ``worker`` until SIGTERM or ``stopping``, then waits until hints under way are sent.

    Returns False if that took too long.

    The worker has a thread of its own: a broker that hangs blocks it for seconds, and a main thread that is silent for
    so long counts as hung (services.core.runtime.liveness).
    """
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: stopping.set())
    thread = threading.Thread(target=worker.start, name="worker", daemon=True)
    thread.start()
    while thread.is_alive() and not stopping.wait(_POLL_S):
        pass
    # Celery's loop reads this between two messages, after it has woken up.
    state.should_stop = 0
    if worker.hub is not None:
        worker.hub.call_soon(lambda: None)
    deadline = time.monotonic() + _DRAIN_S
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(_POLL_S)
    return not thread.is_alive()


def _use_own_temporary_folder(folder: Path) -> None:
    """Sets this process's temporary folder, through which kombu moves each message, and empties it.

    A message that a killed worker left in it is lost, as hints may be.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in folder.iterdir():
        left.unlink(missing_ok=True)
    tempfile.tempdir = str(folder)


def _format_celery_logs(root: logging.Logger) -> None:
    """Formats Celery's log lines as our own; only warnings and errors."""
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
    # They repeat each lost connection, which our consumer logs once, and log each hint that is given back at the end.
    for logger in ("celery.worker.consumer", "kombu.transport.virtual"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    logging.captureWarnings(capture=True)
    # Celery warns that hints under way are not cancelled with their connection: they take two seconds at most.
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)


if __name__ == "__main__":
    end_process(main())
