"""Names the client of a TCP connection, so that connections can be limited per client before it has authenticated.

Clients of other machines are named by their address. All users of this machine, learners included, have the address of
loopback, so they are named by the user id of the process that connected.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, Final

from services.core.runtime.socket_owners import owner

_BLOCK_6: Final = 64
"""A customer of a network has so many bits of addresses for itself in IPv6."""


def client_name(server: Sequence[Any], peer: Sequence[Any]) -> str:
    """``uid 1000`` for a process of this machine, else the address. Arguments: both addresses of the connection.

    Empty for a connection that has none, as those of unix sockets.
    """
    if not server or not peer:
        return ""
    uid = owner(peer, server)
    if uid is not None:
        return f"uid {uid}"
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _BLOCK_6), strict=False))
    return str(address)
