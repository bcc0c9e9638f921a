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
import warnings
from typing import Any, Final

import structlog
from celery.exceptions import CPendingDeprecationWarning
from celery.worker import WorkController, state

from services.core import wiring
from services.core.adapters.celery import filesystem
from services.core.adapters.celery.app import make_app, on_hint
from services.core.adapters.celery.broker import FOLDER, Broker
from services.core.adapters.celery.consumer import Presence, consumer_class
from services.core.adapters.celery.nudge import Nudger
from services.core.domain.errors import WeftError
from services.core.service import Service, configure_logging, http_server, operations_app, serve_http
from services.core.settings import Settings

_AT_ONCE: Final = 4
"""Hints under way at once; each waits for a service for at most two seconds."""
_DRAIN_S: Final = 8
"""What is under way when the worker is told to end may take so long, then it is left: as with a broker that hangs."""
log = structlog.get_logger()


def main() -> int:
    """Runs until SIGTERM; the exit code."""
    settings = Settings()
    configure_logging("worker", settings.log_level)
    _bring_in_line(logging.getLogger())
    try:
        broker = Broker.of(settings)
        nudger = Nudger(settings.place.address, asyncio.run(wiring.service_secret(settings)))
        operations = settings.place.address("worker-ops")
    except WeftError as error:
        log.error("service.cannot_run", why=[error.message])  # noqa: TRY400 - no trace for people
        return 1
    presence = Presence()
    service = Service("worker", settings, checks={"broker": presence.ping}, started=True)
    serving = nudger.run(serve_http(http_server(operations_app(service), operations), service.stopping))
    app = make_app(broker, works=True)
    on_hint(app, nudger)
    worker = WorkController(
        app=app,
        pool_cls="threads",
        concurrency=_AT_ONCE,
        hostname="weft@localhost",
        consumer_cls=consumer_class(presence),
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, _stop)
    signal.signal(signal.SIGALRM, _leave)
    if broker.kind == FOLDER and (recovered := filesystem.recover(broker.folder)):
        log.info("worker.recovered", files=recovered)
    log.info("service.starting")
    worker.start()
    nudger.loop.call_soon_threadsafe(service.stopping.set)
    serving.result()
    nudger.close()
    signal.alarm(0)
    log.info("service.stopped")
    return int(worker.exitcode or 0)


def _stop(*_: Any) -> None:
    """Celery's loop looks at this between two messages: what is under way is finished."""
    state.should_stop = 0
    signal.alarm(_DRAIN_S)


def _leave(*_: Any) -> None:
    """Threads that wait for a broker cannot be told to end; what they carry may be lost."""
    log.warning("service.left", why=f"what was under way has not ended within {_DRAIN_S} s")
    os._exit(0)


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
