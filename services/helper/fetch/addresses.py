"""Which addresses a user's URL may lead to: the public internet, and what the operator has named.

A name is resolved once, each of its addresses is checked, and the connection goes to a checked address: a name that
resolves to another address a moment later changes nothing. Each redirect is a new URL and is checked in the same way.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from services.helper.fetch.progress import FetchFailed

DENIED: Final = "DataStoreDenied"
CONNECT_S: Final = 20.0
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class CheckedUrl:
    """An allowed URL, and the checked address of its host."""

    url: SplitResult
    host: str
    port: int
    address: str

    def connect(self) -> http.client.HTTPConnection:
        """A connection to the checked address, under the host's name (for TLS and virtual hosts). No proxy."""
        if self.url.scheme == "https":
            return _PinnedHTTPS(self)
        return _Pinned(self)

    @property
    def target(self) -> str:
        """The request line's path and query."""
        return (self.url.path or "/") + (f"?{self.url.query}" if self.url.query else "")


def check_url(url: str, allowed: tuple[str, ...]) -> CheckedUrl:
    """Raises FetchFailed for an address that jobs may not use, OSError if its name cannot be resolved now.

    ``allowed``: hosts and networks that the operator has opened.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        port = 0
    host = parts.hostname or ""
    if not port or not host or parts.username is not None:
        raise FetchFailed(DENIED, f"{url[:200]} is no http or https address that can be fetched")
    resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in resolved]
    for address in addresses:
        if not _is_public(address) and not _is_allowed(host, address, allowed):
            raise FetchFailed(
                DENIED,
                f"{host} is not on the public internet, and the operator has not allowed it (WEFT_HTTP_ALLOW)",
            )
    return CheckedUrl(parts, host, port, addresses[0])


def _is_public(text: str) -> bool:
    address: Address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is None and address in ipaddress.ip_network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return _is_public(str(inner))
    return address.is_global and not address.is_multicast


def _is_allowed(host: str, address: str, allowed: tuple[str, ...]) -> bool:
    for entry in allowed:
        if entry == host:
            return True
        try:
            if ipaddress.ip_address(address.partition("%")[0]) in ipaddress.ip_network(entry, strict=False):
                return True
        except ValueError:
            continue  # another host's name
    return False


class _Pinned(http.client.HTTPConnection):
    def __init__(self, checked: CheckedUrl) -> None:
        super().__init__(checked.host, checked.port, timeout=CONNECT_S)
        self._address = checked.address

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self.timeout)


class _PinnedHTTPS(http.client.HTTPSConnection):
    def __init__(self, checked: CheckedUrl) -> None:
        self._tls = ssl.create_default_context()
        super().__init__(checked.host, checked.port, timeout=CONNECT_S, context=self._tls)
        self._address = checked.address

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), self.timeout)
        self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
