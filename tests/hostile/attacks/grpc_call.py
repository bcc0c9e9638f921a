"""One gRPC call by hand: HTTP/2 without a library, as learners have none."""

from __future__ import annotations

import socket
import struct
from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _GOAWAY = 0, 1, 3, 4, 7
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _integer(value: int) -> bytes:
    """HPACK's integer with a prefix of 7 bits (RFC 7541, section 5.1)."""
    if value < 127:
        return bytes([value])
    out, value = bytearray([127]), value - 127
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


def _header(name: str, value: str) -> bytes:
    """A literal that is not indexed (RFC 7541, section 6.2.2)."""
    parts = (name.encode(), value.encode("latin-1"))
    return b"\0" + b"".join(_integer(len(part)) + part for part in parts)


def _exactly(connection: socket.socket, size: int) -> bytes:
    out = b""
    while len(out) < size:
        chunk = connection.recv(size - len(out))
        if not chunk:
            raise OSError("the connection was closed")
        out += chunk
    return out


def call(connection: socket.socket, method: str, authorization: str, message: bytes = b"") -> bytes | None:
    """The reply of a unary call; None if the server refuses it. OSError if it does not speak gRPC."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "localhost")]
    headers += [("content-type", "application/grpc"), ("te", "trailers")]
    if authorization:
        headers.append(("authorization", authorization))
    block = b"".join(_header(*pair) for pair in headers)
    connection.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, _END_HEADERS, 1, block[:16_000]))
    body = b"\0" + struct.pack(">I", len(message)) + message
    connection.sendall(_frame(_DATA, _END_STREAM, 1, body))
    while True:
        head = _exactly(connection, 9)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        payload = _exactly(connection, size)
        if kind == _SETTINGS and not flags & _ACK:
            connection.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _DATA:
            return payload
        elif kind in {_RESET, _GOAWAY} or (kind == _HEADERS and flags & _END_STREAM):
            return None
