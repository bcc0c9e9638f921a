"""The edge of a loop or task: an unexpected error is logged with its trace, and the loop goes on.

Together with ``outcomes`` (threads) this is the place for ``except Exception``: elsewhere code catches precise errors.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog

log: Final = structlog.get_logger()


@dataclass(slots=True)
class Edge:
    """What happened inside ``log_unexpected``."""

    failed: bool = False
    """True after an error was logged."""


@contextmanager
def log_unexpected(
    event: str, *, expected: type[Exception] | tuple[type[Exception], ...] = (), **fields: object
) -> Generator[Edge]:
    """Logs an error of the body with its trace as ``event`` with these fields, and suppresses it.

    ``expected``: errors that the caller handles itself; they are raised unchanged. Cancellation, KeyboardInterrupt and
    SystemExit are no ``Exception`` and pass, too.
    """
    edge = Edge()
    try:
        yield edge
    except expected:
        raise
    except Exception:  # the edge of all loops and tasks: a bug in one round must not end the loop
        edge.failed = True
        log.exception(event, **fields)
