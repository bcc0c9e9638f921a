"""The user ids of TCP sockets of this machine, as the kernel says them (sock_diag(7)). No rights are needed."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

_SOCK_DIAG: Final = 4
"""Protocol of netlink."""
_BY_FAMILY: Final = 20
"""Type of a request, and of an answer about a socket."""
_REQUEST, _DUMP = 1, 0x300
_HEADER: Final = struct.Struct("=IHHII")
_QUERY: Final = struct.Struct("=BBBBI")
_PORTS: Final = struct.Struct("!HH")
_ANY: Final = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
"""Any interface, any cookie: the rest of a socket's id."""
_PORT_AT: Final = _HEADER.size + 4
"""After the answer's header come four bytes of state, the id (48 bytes), the timer and two queues, and the owner."""
_UID_AT: Final = _PORT_AT + 48 + 12
_ALL_STATES: Final = 0xFFFFFFFF
_LISTENING: Final = 1 << 10
_ANSWER_S: Final = 1.0
_MOST: Final = 2**16


@dataclass(frozen=True, slots=True)
class Listener:
    port: int
    uid: int


def owner(local: Sequence[Any], peer: Sequence[Any]) -> int | None:
    """The owner of the connected socket with the address ``local``, whose other end is ``peer``; None without one."""
    family = socket.AF_INET6 if ":" in local[0] else socket.AF_INET
    places = b"".join(socket.inet_pton(family, place[0]).ljust(16, b"\0") for place in (local, peer))
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES)
    answers = _query(query + _PORTS.pack(local[1], peer[1]) + places + _ANY, _REQUEST)
    return next((listener.uid for listener in answers), None)


def listeners() -> list[Listener]:
    """All sockets that listen, on any address. Empty where the kernel does not tell."""
    return [
        listener
        for family in (socket.AF_INET, socket.AF_INET6)
        for listener in _query(
            _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, _LISTENING) + bytes(4 + 32) + _ANY, _REQUEST | _DUMP
        )
    ]


def _query(body: bytes, flags: int) -> Iterator[Listener]:
    with suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as diag:
        diag.settimeout(_ANSWER_S)
        diag.sendto(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, flags, 1, 0) + body, (0, 0))
        while True:
            answer, at = diag.recv(_MOST), 0
            while at + _HEADER.size <= len(answer):
                length, kind, *_ = _HEADER.unpack_from(answer, at)
                if kind != _BY_FAMILY:
                    return  # the end of a list, or an error: there is no such socket
                (port, _), (uid,) = (
                    _PORTS.unpack_from(answer, at + _PORT_AT),
                    struct.unpack_from("=I", answer, at + _UID_AT),
                )
                yield Listener(port, uid)
                at += (length + 3) & ~3
            if not flags & _DUMP:
                return
