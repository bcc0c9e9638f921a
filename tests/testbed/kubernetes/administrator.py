"""An administrator's requests to the API server, much cheaper than by kubectl: in this process, over kept connections.

A start of kubectl takes 0.15 s of processor time. And a test that waits reads every 50 ms: a handshake takes both sides
longer than the request.
"""

from __future__ import annotations

import json
import ssl
import weakref
from collections.abc import Mapping
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tests.waiting import HANG_S

_LOST: Final = (ConnectionError, ssl.SSLError)
_TYPES: Final = {"POST": "application/json", "PATCH": "application/merge-patch+json"}


class Administrator:
    """For any number of threads."""

    def __init__(self, cluster_folder: Path) -> None:
        self._folder = cluster_folder
        self._idle: list[_Connection] = []
        weakref.finalize(self, _close, self._idle)

    def get(self, path: str, *, as_user: str = "") -> bytes:
        """Returns the answer. OSError for an error status, too. ``as_user``: with the rights of this user instead."""
        headers = {"Impersonate-User": as_user} if as_user else {}
        while connection := _taken(self._idle):
            try:
                return self._answer(connection, "GET", path, headers=headers)
            except _LOST:
                _close(self._idle)  # those to an API server that has ended
        return self._answer(_Connection(self._folder), "GET", path, headers=headers)

    def create(self, path: str, document: Mapping[str, object]) -> dict[str, Any]:
        """``path``: of the collection. Returns what the API server has made of it. OSError for an error status, too."""
        return self._send("POST", path, document)

    def patch(self, path: str, document: Mapping[str, object]) -> None:
        """``document``: a merge patch (RFC 7386). OSError for an error status, too."""
        self._send("PATCH", path, document)

    def _send(self, method: str, path: str, document: Mapping[str, object]) -> dict[str, Any]:
        # Over a new connection: of a request on one that is lost, it is unknown whether the API server has obeyed it.
        body, headers = json.dumps(document), {"Content-Type": _TYPES[method]}
        made: dict[str, Any] = json.loads(self._answer(_Connection(self._folder), method, path, body, headers))
        return made

    def _answer(
        self, connection: _Connection, method: str, path: str, body: str | None = None, headers: Mapping[str, str] = {}
    ) -> bytes:
        try:
            connection.request(method, path, body, {**connection.credentials, **headers})
            answer = connection.getresponse()
            content = answer.read()
        except BaseException as error:
            connection.close()
            if isinstance(error, HTTPException):  # not all of them are OSErrors
                raise ConnectionError(f"{path}: {error!r}") from error
            raise
        self._idle.append(connection)
        if answer.status >= 400:
            raise OSError(f"{method} {path}: {answer.status} {content.decode(errors='replace')[:500]}")
        return content


class _Connection(HTTPSConnection):
    def __init__(self, cluster_folder: Path) -> None:
        settings = json.loads((cluster_folder / "kubeconfig").read_text())
        server = urlsplit(settings["clusters"][0]["cluster"]["server"])
        context = ssl.create_default_context(cafile=str(cluster_folder / "keys" / "ca.crt"))
        super().__init__(str(server.hostname), server.port, context=context, timeout=HANG_S)
        self.credentials = {"Authorization": f"Bearer {settings['users'][0]['user']['token']}"}


def _taken(connections: list[_Connection]) -> _Connection | None:
    """One that no other thread has taken; None if there is none left."""
    try:
        return connections.pop()
    except IndexError:
        return None


def _close(connections: list[_Connection]) -> None:
    while connection := _taken(connections):
        connection.close()
