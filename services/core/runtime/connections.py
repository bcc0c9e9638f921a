"""Bounds the connections of one listener, in all and for each client, before a client has authenticated.

If all are taken, a client that has fewer than another one still gets its connection: the oldest one of the client
that has most is closed for it. So no number of clients below the bound keeps others out.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable

from services.core.runtime.client_names import client_name


class Connections:
    """``count_refused`` is called with why: ``client``, ``all``, or ``evicted`` for one closed in favour of another."""

    def __init__(self, *, most: int, most_of_client: int, count_refused: Callable[[str], None]) -> None:
        self._most, self._most_of_client = most, most_of_client
        self._count_refused = count_refused
        self._clients: dict[str, dict[asyncio.Transport, None]] = {}
        """Client -> its connections, the oldest first."""
        self._client_of: dict[asyncio.Transport, str] = {}

    def __len__(self) -> int:
        return len(self._client_of)

    def admit(self, transport: asyncio.Transport) -> bool:
        """Counts a new connection until ``left``. False: it must be closed."""
        client = client_name(transport.get_extra_info("sockname"), transport.get_extra_info("peername"))
        count = len(self._clients.get(client, ()))
        if count >= self._most_of_client:
            self._count_refused("client")
            return False
        if len(self) >= self._most and not self._evict(count):
            self._count_refused("all")
            return False
        self._clients.setdefault(client, {})[transport] = None
        self._client_of[transport] = client
        return True

    def left(self, transport: asyncio.Transport) -> None:
        """The connection has ended; may be repeated."""
        client = self._client_of.pop(transport, None)
        if client is not None:
            del self._clients[client][transport]
            if not self._clients[client]:
                del self._clients[client]

    def _evict(self, count: int) -> bool:
        """Closes a connection of the client that has most, if that is more than ``count`` and one."""
        largest = max(self._clients.values(), key=len)
        if len(largest) <= count + 1:
            return False
        oldest = next(iter(largest))
        self.left(oldest)
        oldest.abort()
        self._count_refused("evicted")
        return True


def affordable(wanted: int, *, descriptors: int, share: float) -> int:
    """``wanted`` connections, or as many as a share of the files that this process may open allows."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if limit < 0 else max(1, min(wanted, int(limit * share) // descriptors))
