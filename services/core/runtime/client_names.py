"""Names the client of a TCP connection, so that connections can be limited per client before it has authenticated.

Clients of other machines are named by their address. All users of this machine, learners included, have the address of
loopback, so they are named by the user id of the process that connected. The kernel says it (sock_diag(7)).
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

_SOCK_DIAG: Final = 4
"""Protocol of netlink."""
_BY_FAMILY: Final = 20
"""Type of the request, and of its answer."""
_REQUEST: Final = 1
_HEADER: Final = struct.Struct("=IHHII")
_QUERY: Final = struct.Struct("=BBBBI")
_PORTS: Final = struct.Struct("!HH")
_REST_OF_ID: Final = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
"""Any interface, any cookie."""
_UID_AT: Final = _HEADER.size + 4 + 48 + 12
"""After the answer's header, four bytes of state, the socket's id, its timer and its two queues."""
_ANSWER_S: Final = 1.0
_BLOCK_6: Final = 64
"""A customer of a network has so many bits of addresses for itself in IPv6."""


def client_name(server: Sequence[Any], peer: Sequence[Any]) -> str:
    """``uid 1000`` for a process of this machine, else the address. Arguments: both addresses of the connection.

    Empty for a connection that has none, as those of unix sockets.
    """
    if not server or not peer:
        return ""
    uid = _owner(server, peer)
    if uid is not None:
        return f"uid {uid}"
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _BLOCK_6), strict=False))
    return str(address)


def _owner(server: Sequence[Any], peer: Sequence[Any]) -> int | None:
    """The owner of the socket of this machine with the address ``peer``; None: it is another machine's."""
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    places = b"".join(socket.inet_pton(family, place[0]).ljust(16, b"\0") for place in (peer, server))
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    body = query + _PORTS.pack(peer[1], server[1]) + places + _REST_OF_ID
    with suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as diag:
        diag.settimeout(_ANSWER_S)
        diag.sendto(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 1, 0) + body, (0, 0))
        answer = diag.recv(4096)
        if _HEADER.unpack_from(answer)[1] == _BY_FAMILY:
            return int(struct.unpack_from("=I", answer, _UID_AT)[0])
    return None
