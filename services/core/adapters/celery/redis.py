"""kombu's Redis transport, made safe for what it cannot read, and for a queue that nobody empties.

A message that is not kombu's would raise out of the worker's event loop. And a list in Redis has no end: without a
worker it would grow until Redis has no memory left.
"""

from __future__ import annotations

from queue import Empty
from typing import Any, Final

from kombu.transport import redis

from services.core.adapters.celery import poison
from services.core.adapters.celery.broker import QUEUE_AT_MOST

_EVERY: Final = 100
"""Hints between two looks at the length of the queue."""


class Channel(redis.Channel):
    _puts = 0

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        super()._put(queue, message, **kwargs)  # type: ignore[no-untyped-call]
        self._puts += 1
        if self._puts % _EVERY == 1:
            with self.conn_or_acquire() as client:
                client.ltrim(queue, 0, QUEUE_AT_MOST - 1)  # the newest are at its head

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except poison.UNREADABLE:  # taken from the list, and that is the end of it
            poison.dropped(poison.Poisoned("format"))
            raise Empty from None


class Transport(redis.Transport):
    Channel = Channel
