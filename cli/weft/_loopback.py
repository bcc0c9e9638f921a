"""Requests to a platform on this machine, over `http.client`: no TLS, no proxy, no redirect.

Connections are kept and used again, each by one request at a time. A kept connection that the platform has closed
meanwhile is readable (its end can be read): it is replaced before anything is sent.
"""

from __future__ import annotations

import json
import select
import socket
from collections import deque
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from weft._profile import Profile, is_loopback
from weft._wire import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S, Answer, broken, common_headers, never_sent, timed_out

_MOST_KEPT: Final = 8


def is_plain_loopback(url: str) -> bool:
    """Whether this is an http address of this machine, without anything that only a complete HTTP client knows."""
    try:
        parts = urlsplit(url)
        host, plain = parts.hostname or "", parts.port is None or parts.port > 0
    except ValueError:
        return False
    plain = plain and parts.scheme == "http" and not (parts.query or parts.fragment or parts.username)
    return plain and url.isascii() and url.isprintable() and " " not in url and is_loopback(host)


class Loopback:
    """Speaks to one platform with one key; threads may share it."""

    def __init__(self, profile: Profile) -> None:
        """``profile``: its URL is a plain loopback one. Raises InvalidRequest for a key that cannot be used."""
        parts = urlsplit(profile.url)
        self._url, self._home = profile.url, profile.home
        self._host, self._port, self._prefix = parts.hostname or "", parts.port or 80, parts.path.rstrip("/")
        self._headers = {"Accept": "application/json", **common_headers(profile)}
        self._idle: deque[HTTPConnection] = deque()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def request(
        self, method: str, path: str, *, params: Mapping[str, Any], body: object, headers: Mapping[str, str]
    ) -> Answer:
        """``body``: sent as JSON; None: no body."""
        target = self._prefix + quote(path, safe="/%:@!$&'()*+,;=~")
        if params:
            target += f"?{urlencode(params, doseq=True)}"
        sent = {**self._headers, **headers}
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        if content is not None:
            sent["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            connection.request(method, target, body=content, headers=sent)
            response = connection.getresponse()
            answer = Answer(
                response.status, {name.lower(): value for name, value in response.headers.items()}, response.read()
            )
        except BaseException as failed:
            connection.close()
            if isinstance(failed, TimeoutError):
                raise timed_out(self._url) from failed
            if isinstance(failed, (OSError, HTTPException)):
                raise broken(self._url, failed) from failed
            raise
        if response.will_close or len(self._idle) >= _MOST_KEPT:
            connection.close()
        else:
            self._idle.append(connection)
        return answer

    def _connection(self) -> HTTPConnection:
        """A connection that is open. Raises NeverSent if none can be made."""
        while True:
            try:
                kept = self._idle.pop()
            except IndexError:
                break
            if _is_open(kept):
                return kept
            kept.close()
        connection = _Connection(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
        try:
            connection.connect()
        except OSError as failed:
            connection.close()
            raise never_sent(self._url, self._host, failed, home=self._home) from failed
        connection.sock.settimeout(ANSWER_TIMEOUT_S)
        return connection


class _Connection(HTTPConnection):
    def connect(self) -> None:
        """As the base class; the host's name is given as bytes, since Python loads its tables of Unicode for text."""
        host: Any = self.host.encode()  # the stubs of create_connection know text only
        self.sock = socket.create_connection((host, self.port), self.timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _is_open(connection: HTTPConnection) -> bool:
    """Whether nothing is to be read: neither the connection's end nor bytes that belong to no request."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)
