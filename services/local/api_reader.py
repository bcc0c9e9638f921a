"""Reads the api of the platform on this machine, with the first administrator's key: for `weft status` and `weft down`.

Over a plain socket: these commands load no large HTTP library, and loopback is never behind a proxy.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from services.core.adapters.folder.secret_files import SecretFiles
from services.core.domain.errors import Unavailable, WeftError
from services.core.runtime.home import Home
from weft.http_exchange import HttpConnection, HttpError, bearer, connect


def admin_key(home: Home) -> str:
    """Returns the first administrator's key; empty before the api has made it."""
    return (SecretFiles(home / "secrets").get("admin-key") or b"").decode().strip()


def key_or_empty(home: Home) -> str:
    """The same; empty also if it cannot be read."""
    try:
        return admin_key(home)
    except WeftError:
        return ""


def read_api(home: Home, path: str, *, timeout_s: float) -> Any:
    """The JSON of one GET. Raises Unavailable, or another WeftError, if there is no such answer."""
    host, port = home.address("api").host_port
    key = admin_key(home)
    try:
        connection = HttpConnection(connect(host, port, timeout_s), f"{host}:{port}")
        try:
            answer = connection.exchange("GET", path, bearer(key))
        finally:
            connection.close()
        if answer.status != HTTPStatus.OK:
            raise Unavailable(f"the api answers with HTTP {answer.status}")
        return json.loads(answer.body)
    except (OSError, ValueError, HttpError) as failed:
        raise Unavailable(f"the api does not answer: {failed}") from failed
