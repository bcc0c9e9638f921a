"""The Celery worker: carries hints to the services, and is nothing more. ``python -m services.lcm.worker``.

Threads, not processes: gRPC does not survive a fork. Not Celery's own program: its banner, its root logger and its
signals are not ours. When it dies, hints are late by a sweep.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import Any, Final

import structlog
from celery.worker import WorkController, state

from services.core import wiring
from services.core.adapters.celery import filesystem
from services.core.adapters.celery.app import Broker, make_app, on_hint
from services.core.adapters.celery.nudge import Nudger
from services.core.domain.errors import WeftError
from services.core.service import configure_logging
from services.core.settings import Settings

_AT_ONCE: Final = 4
"""Hints under way at once; each waits for a service for at most two seconds."""
log = structlog.get_logger()


def main() -> int:
    """Runs until SIGTERM; the exit code."""
    settings = Settings()
    configure_logging("worker", settings.log_level)
    _bring_in_line(logging.getLogger())
    broker = Broker.of(settings)
    try:
        nudger = Nudger(settings.place.address, asyncio.run(wiring.service_secret(settings)))
    except WeftError as error:
        log.error("service.cannot_run", why=[error.message])  # noqa: TRY400 - no trace for people
        return 1
    app = make_app(broker)
    on_hint(app, nudger)
    worker = WorkController(
        app=app,
        pool_cls="threads",
        concurrency=_AT_ONCE,
        hostname="weft@localhost",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, _stop)
    if broker.url.startswith("filesystem://") and (pruned := filesystem.prune(broker.folder)):
        log.info("worker.pruned", files=pruned)
    log.info("service.starting")
    worker.start()
    nudger.close()
    log.info("service.stopped")
    return int(worker.exitcode or 0)


def _stop(*_: Any) -> None:
    """Celery's loop looks at this between two messages: what is under way is finished."""
    state.should_stop = 0


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


if __name__ == "__main__":
    sys.exit(main())
