"""Channels and listening ports of inner gRPC: sockets or mutual TLS, by the form of the address.

The one place that knows how gRPC is protected between services, for clients and servers alike.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from services.core.domain.errors import WeftError
from services.core.runtime.address import Address, TlsAuthority, TlsFiles
from services.core.runtime.sockets import SocketPlace, open_private_folder, short_path


def dial(
    address: Address, *, options: Sequence[tuple[str, Any]], interceptors: Sequence[grpc.aio.ClientInterceptor] = ()
) -> grpc.aio.Channel:
    """A channel to an inner server, which connects at its first call.

    Raises InvalidRequest for an address without protection, WeftError for a folder of sockets that others may write.
    """
    path, trust = address.inner.socket, address.trust()
    if trust is not None:
        return grpc.aio.secure_channel(
            address.target, _client_credentials(trust), options=options, interceptors=interceptors
        )
    assert path is not None  # noqa: S101 - ``inner`` leaves no third form
    folder = open_private_folder(path.parent)
    channel = grpc.aio.insecure_channel(
        f"unix:{short_path(path, folder)}",
        options=(*options, ("grpc.default_authority", "localhost")),
        interceptors=interceptors,
    )
    weakref.finalize(channel, os.close, folder)  # a long path goes through it at each connection
    return channel


class Listening:
    """A server at one address, which no other process can serve until ``stop`` or the end of this process."""

    def __init__(self, server: grpc.aio.Server, address: Address, *, client_certificates: bool = True) -> None:
        """Raises InvalidRequest as ``dial``, WeftError if another process serves there."""
        self._server, self._place = server, None
        path, files = address.inner.socket, address.files()
        if path is not None:
            self._place = SocketPlace.take(path)
            self._add(f"unix:{self._place.temporary}", None, address)
        else:
            assert files is not None  # noqa: S101 - ``inner`` leaves no third form
            self._add(address.target, _server_credentials(files, client_certificates=client_certificates), address)

    def _add(self, target: str, credentials: grpc.ServerCredentials | None, address: Address) -> None:
        try:
            if credentials is None:
                self._server.add_insecure_port(target)
            else:
                self._server.add_secure_port(target, credentials)
        except RuntimeError:
            self._release()
            raise WeftError(f"cannot listen on {address}: the port is taken") from None

    async def start(self) -> None:
        await self._server.start()
        if self._place is not None:
            self._place.publish()

    async def stop(self, grace_s: float | None) -> None:
        """Ends running calls after ``grace_s`` seconds; None: at once. May be called again."""
        await self._server.stop(grace_s)
        self._release()

    def _release(self) -> None:
        if self._place is not None:
            self._place.release()


def _client_credentials(trust: TlsFiles | TlsAuthority) -> grpc.ChannelCredentials:
    if isinstance(trust, TlsAuthority):
        return grpc.ssl_channel_credentials(_read_file(trust.authority))
    authority, key, certificate = _read(trust)
    return grpc.ssl_channel_credentials(authority, key, certificate)


def _server_credentials(files: TlsFiles, *, client_certificates: bool) -> grpc.ServerCredentials:
    """Renewed files are used from the next handshake on."""
    current = _read(files)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """None: the files are those of the handshake before.

        gRPC frees what another handshake may be using when it gets a new configuration (grpc/grpc#36693): with one for
        each handshake, a process crashed when hundreds of clients connected at once.
        """
        nonlocal current
        with suppress(WeftError):  # in the middle of a renewal: those of before still work
            if (present := _read(files)) != current:
                current = present
                return _configuration(present)
        return None

    return grpc.dynamic_ssl_server_credentials(
        _configuration(current),
        fetch,  # type: ignore[arg-type]  # gRPC's documentation allows None, its stub does not
        require_client_authentication=client_certificates,
    )


def _configuration(files: tuple[bytes, bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    """Of the contents of ``_read``."""
    authority, key, certificate = files
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)


def _read(files: TlsFiles) -> tuple[bytes, bytes, bytes]:
    """Authority, key, certificate. Raises WeftError."""
    return _read_file(files.authority), _read_file(files.key), _read_file(files.certificate)


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise WeftError(f"cannot read the TLS file {error.filename}: {error.strerror}") from None
