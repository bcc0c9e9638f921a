"""Drops messages that are no hints before anything acts on them, so that none stops the worker or comes back to it.

The broker's queue may hold anything: messages of a stray tool, of a job of another program, of an older Weft. They are
dropped, with a line in the log that never repeats their content, and counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import structlog

from services.core.adapters.hint_instrumentation import POISONED
from services.core.domain.codec import MALFORMED

AT_MOST_BYTES: Final = 16 * 2**10
"""A hint has some hundreds."""
_ARGUMENTS: Final = 3
log = structlog.get_logger()


class Poisoned(Exception):
    """``why``: size | format | task | arguments. Few and fixed: they are labels of a counter."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def dropped(poison: Poisoned, size: int | None = None) -> None:
    """Says so and counts it. ``size``: bytes, where they can be said."""
    POISONED.labels(poison.why).inc()
    log.warning("hint.poisoned", why=poison.why, bytes=size)


def hint(task: str, body: Any, content_type: Any, headers: Any) -> None:
    """Whether a message's parts are those of a hint, as ``app.send`` makes them. Poisoned."""
    if not isinstance(body, str | bytes | memoryview) or content_type != "application/json":
        raise Poisoned("format")
    if len(body) > AT_MOST_BYTES:
        raise Poisoned("size")
    if not isinstance(headers, Mapping) or headers.get("task") != task:
        raise Poisoned("task")
    # Neither put off nor put together with others: Celery would keep it, or send more.
    if headers.get("eta") or not isinstance(headers.get("id"), str) or not _fit_expiry(headers.get("expires")):
        raise Poisoned("arguments")
    try:
        args, kwargs, embedded = json.loads(bytes(body) if isinstance(body, memoryview) else body)
        fit = (
            isinstance(args, list)
            and len(args) == _ARGUMENTS
            and all(isinstance(argument, str) for argument in args)
            and not kwargs
            and not any(embedded.values())
        )
    except MALFORMED:
        raise Poisoned("format") from None
    if not fit:
        raise Poisoned("arguments")


def _fit_expiry(expires: object) -> bool:
    return expires is None or isinstance(expires, str)


def size(body: object) -> int | None:
    """Bytes (or characters) of a message, where that can be said."""
    return len(body) if isinstance(body, str | bytes | memoryview) else None
