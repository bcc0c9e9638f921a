"""Requests to a platform on this machine, over plain sockets: no TLS, no proxy, no redirect.

Connections are kept and used again, each by one request at a time. A kept connection that the platform has closed
meanwhile is readable (its end can be read): it is replaced before anything is sent.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from weft._profile import Profile, is_loopback
from weft._wire import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S, broken, common_headers, never_sent, timed_out
from weft.http_exchange import Answer, HttpConnection, HttpError, connect

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
        self._netloc = parts.netloc
        self._headers = {"Accept": "application/json", **common_headers(profile)}
        self._idle: deque[HttpConnection] = deque()
        self._closed = False

    def close(self) -> None:
        """Closes all connections; those that another thread uses are closed after its request."""
        self._closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        """Closes the connections that no request uses."""
        with suppress(IndexError):  # another thread may take the last one
            while True:
                self._idle.pop().close()

    def request(
        self, method: str, path: str, *, params: Mapping[str, Any], body: object, headers: Mapping[str, str]
    ) -> Answer:
        """``body``: sent as JSON; None: no body."""
        target = self._prefix + quote(path, safe="/%:@!$&'()*+,;=~")
        if params:
            target += f"?{urlencode(params, doseq=True)}"
        sent = {**self._headers, **headers}
        content = b""
        if body is not None:
            content = json.dumps(body, allow_nan=False).encode()
            sent["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            answer = connection.exchange(method, target, sent, content)
        except BaseException as failed:
            connection.close()
            if isinstance(failed, TimeoutError):
                raise timed_out(self._url) from failed
            if isinstance(failed, (OSError, HttpError)):
                raise broken(self._url, failed) from failed
            raise
        if connection.is_reusable() and len(self._idle) < _MOST_KEPT:
            self._idle.append(connection)
        else:
            connection.close()
        if self._closed:  # meanwhile, by another thread
            self.drop_idle()
        return answer

    def _connection(self) -> HttpConnection:
        """A connection that is open. Raises NeverSent if none can be made."""
        while True:
            try:
                kept = self._idle.pop()
            except IndexError:
                break
            if kept.is_open():
                return kept
            kept.close()
        try:
            connected = connect(self._host, self._port, CONNECT_TIMEOUT_S)
        except OSError as failed:
            raise never_sent(self._url, self._host, failed, home=self._home) from failed
        connected.settimeout(ANSWER_TIMEOUT_S)
        return HttpConnection(connected, self._netloc)
