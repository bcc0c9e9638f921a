"""The log of a service, and of the supervisor: one JSON object per line on standard error."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TextIO, cast

import structlog


class _Stderr:
    """Standard error that drops what it cannot write: the work that logs must not fail because a disk is full."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            return os.write(2, text.encode(errors="backslashreplace"))
        return 0

    def flush(self) -> None:
        """No effect: there is no buffer."""


def configure_logging(name: str, level: str) -> None:
    """Makes structlog write one JSON object per line to stderr, with ``service``, ``pid``, level and time.

    ``level``: debug | info | warning | error.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Stderr())),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=name, pid=os.getpid())
