"""Where a server listens, and how connections to it are protected. The form of an address decides, for both ends.

    unix:/path       a socket in a folder that only the platform's user can enter: the kernel protects it
    tls:host:port    mutual TLS: both ends show a certificate of the installation's authority
    host:port        plain TCP, for users only: the api's REST and gRPC

Inner servers and their clients refuse the third form (``inner``), so no setting can expose them without protection.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from services.core.domain.errors import InvalidRequest

UNIX: Final = "unix:"
TLS: Final = "tls:"
SOCKET_PATH_BYTES: Final = 107
"""The longest path of a socket: ``sun_path`` has 108 bytes with its NUL."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of one process."""

    authority: Path
    """Certificates of the authority whose certificates are accepted."""
    certificate: Path
    key: Path

    @classmethod
    def of(cls, folder: Path, service: str) -> Self:
        """The files that the installation's own authority makes for a service, whether or not they exist."""
        return cls(folder / "authority.pem", folder / f"{service}.pem", folder / f"{service}.key")

    @classmethod
    def given(cls, environ: Mapping[str, str] = os.environ) -> Self | None:
        """The files that the three settings WEFT_TLS_*_FILE name; None unless all do."""
        paths = [environ.get(f"WEFT_TLS_{name}_FILE", "") for name in ("AUTHORITY", "CERTIFICATE", "KEY")]
        return cls(*(Path(path) for path in paths)) if all(paths) else None


@dataclass(frozen=True, slots=True)
class TlsAuthority:
    """The PEM file of a client that shows no certificate of its own (a learner's helper in a pod)."""

    authority: Path


@dataclass(frozen=True, slots=True)
class Address:
    """One address in one of the three forms; ``tls`` are the files of this process for the second."""

    text: str
    tls: TlsFiles | TlsAuthority | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def socket(self) -> Path | None:
        """The path of the socket; None for the other forms."""
        return Path(self.text.removeprefix(UNIX)) if self.text.startswith(UNIX) else None

    @property
    def is_tls(self) -> bool:
        return self.text.startswith(TLS)

    @property
    def host_port(self) -> tuple[str, int]:
        """Host and port. Raises InvalidRequest for a socket and for malformed text."""
        host, _, port = self.text.removeprefix(TLS).rpartition(":")
        if self.socket is not None or not host or not port.isdigit():
            raise InvalidRequest(f"{self.text} is no address of the form host:port or tls:host:port")
        return host.strip("[]"), int(port)

    @property
    def target(self) -> str:
        """The address as gRPC spells it."""
        return self.text.removeprefix(TLS)

    @property
    def inner(self) -> Address:
        """This address. Raises InvalidRequest for plain TCP, and for TLS without files."""
        if self.socket is None and not self.is_tls:
            raise InvalidRequest(f"{self.text} is plain TCP; inner servers listen at unix:PATH or tls:HOST:PORT only")
        self.trust()
        return self

    def trust(self) -> TlsFiles | TlsAuthority | None:
        """What a client needs for TLS; None for the other forms. Raises InvalidRequest where it is not set."""
        if self.is_tls and isinstance(self.tls, TlsAuthority):
            return self.tls
        return self.files()

    def files(self) -> TlsFiles | None:
        """The files for TLS; None for the other forms. Raises InvalidRequest where they are not set."""
        if not self.is_tls:
            return None
        if not isinstance(self.tls, TlsFiles):
            raise InvalidRequest(
                f"{self.text} needs WEFT_TLS_AUTHORITY_FILE, WEFT_TLS_CERTIFICATE_FILE and WEFT_TLS_KEY_FILE"
            )
        return self.tls
