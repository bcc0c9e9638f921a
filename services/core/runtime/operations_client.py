"""Reads a service's operations address (health, readiness, metrics) over its socket or mutual TLS."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from services.core.runtime.address import Address, TlsFiles
from services.core.runtime.sockets import connect_socket
from services.core.runtime.undo import undo_on_failure
from weft.http_exchange import Answer, HttpConnection, connect

if TYPE_CHECKING:
    import ssl


def read_operations(
    address: Address, path: str, *, timeout_s: float, headers: Mapping[str, str] | None = None
) -> Answer:
    """One GET. Raises OSError or HttpError if it gets no answer, WeftErrors for an address that it may not use."""
    connection = HttpConnection(_connect(address.inner, timeout_s), "localhost")
    try:
        return connection.exchange("GET", path, headers or {})
    finally:
        connection.close()


def _connect(address: Address, timeout_s: float) -> socket.socket:
    """``address``: an inner one, which is a socket or has files for TLS."""
    if address.socket is not None:
        return connect_socket(address.socket, timeout_s)
    files = cast("TlsFiles", address.files())
    host, port = address.host_port
    raw = connect(host, port, timeout_s)
    with undo_on_failure(raw.close):
        return client_context(files).wrap_socket(raw, server_hostname=host)


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Shows the certificate of ``files``, and accepts servers of its authority only. Raises OSError."""
    import ssl  # noqa: PLC0415 - not for sockets: it takes 7 ms

    context = ssl.create_default_context(cafile=str(files.authority))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.certificate, files.key)
    return context
