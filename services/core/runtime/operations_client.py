"""Reads a service's operations address (health, readiness, metrics) over its socket or mutual TLS."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from services.core.runtime.address import Address, TlsFiles
from services.core.runtime.sockets import connect_socket
from services.core.runtime.undo import undo_on_failure


@dataclass(frozen=True, slots=True)
class OperationsAnswer:
    status: int
    body: bytes


def read_operations(
    address: Address, path: str, *, timeout_s: float, headers: Mapping[str, str] | None = None
) -> OperationsAnswer:
    """One GET. Raises OSError or HTTPException if it gets no answer, WeftErrors for an address that it may not use."""
    connection = _Connection(address, timeout_s)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        with connection.getresponse() as response:
            try:
                return OperationsAnswer(response.status, response.read())
            except http.client.IncompleteRead as cut:
                why = f"HTTP {response.status} whose body breaks off after {len(cut.partial)} bytes"
                raise http.client.HTTPException(why) from None
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    def __init__(self, address: Address, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._address, self._timeout_s = address.inner, timeout_s

    def connect(self) -> None:
        path, files = self._address.socket, self._address.files()
        if path is not None:
            self.sock = connect_socket(path, self._timeout_s)
        elif files is not None:
            host, port = self._address.host_port
            raw = socket.create_connection((host, port), self._timeout_s)
            with undo_on_failure(raw.close):
                self.sock = client_context(files).wrap_socket(raw, server_hostname=host)


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Shows the certificate of ``files``, and accepts servers of its authority only. Raises OSError."""
    context = ssl.create_default_context(cafile=str(files.authority))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.certificate, files.key)
    return context
