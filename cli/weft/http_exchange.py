"""One HTTP request at a time over a connection that is open: for platforms on this machine, and their services.

HTTP is h11's, which is loaded in a third of the time of `http.client` (that loads `ssl` and `email`). The commands that
look at a platform on this machine spend most of their time on imports.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import h11

_READ: Final = 2**16
_WITH_BODY: Final = ("POST", "PUT", "PATCH")

HttpError = h11.ProtocolError
"""What was sent or received is not valid HTTP, or an answer broke off."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer of the platform. The names of ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        return is_success(self.status)


def is_success(status: int) -> bool:
    """Whether the status code reports success (2xx)."""
    return 200 <= status < 300


def bearer(key: str) -> dict[str, str]:
    """The header that carries an API key; none for an empty one, because HTTP has no such value."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """A TCP connection for small requests. ``timeout_s``: of this, and of each call on it. Raises OSError."""
    # As bytes: Python loads its tables of Unicode for a host that is text.
    address: Any = (host.encode(), port)  # the stubs of create_connection know text only
    connected = socket.create_connection(address, timeout_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


class HttpConnection:
    """A connection, for one request at a time. It owns the socket."""

    def __init__(self, connected: socket.socket, host: str) -> None:
        """``host``: the header's value, e.g. ``127.0.0.1:8080``."""
        self._socket = connected
        self._host = host
        self._http = h11.Connection(h11.CLIENT)

    def close(self) -> None:
        self._socket.close()

    def exchange(self, method: str, target: str, headers: Mapping[str, str], content: bytes = b"") -> Answer:
        """Sends one request and reads its answer. Raises OSError (a TimeoutError in time) and HttpError."""
        sent = {"Host": self._host, **headers}
        if content or method in _WITH_BODY:
            sent["Content-Length"] = str(len(content))
        request = h11.Request(method=method, target=target, headers=list(sent.items()))
        parts = [self._http.send(request), self._http.send(h11.Data(content)), self._http.send(h11.EndOfMessage())]
        self._socket.sendall(b"".join(part for part in parts if part))
        return self._answer()

    def is_reusable(self) -> bool:
        """Prepares the next request after an answer; False if this connection carries no other."""
        is_done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if not is_done or self._http.trailing_data != (b"", False):
            return False
        self._http.start_next_cycle()
        return True

    def is_open(self) -> bool:
        """Whether nothing is to be read: neither the connection's end nor bytes that belong to no request."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def _answer(self) -> Answer:
        status, headers, body = 0, dict[str, str](), bytearray()
        try:
            while not isinstance(event := self._http.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    self._http.receive_data(self._socket.recv(_READ))
                elif isinstance(event, h11.Response):
                    status = event.status_code
                    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                elif isinstance(event, h11.Data):
                    body += event.data
        except h11.ProtocolError as failed:
            if status:
                why = f"HTTP {status} whose body breaks off after {len(body)} bytes"
                raise h11.RemoteProtocolError(why) from failed
            raise
        return Answer(status, headers, bytes(body))
