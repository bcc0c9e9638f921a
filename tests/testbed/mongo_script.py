"""A server of MongoDB's wire protocol whose answers a test writes: for errors that the stand-in never gives."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final, TypeAlias

import bson

Command: TypeAlias = dict[str, Any]
_HEADER: Final = struct.Struct("<iiii")
_QUERY, _MESSAGE = 2004, 2013
_DOCUMENT, _SEQUENCE = 0, 1
_ROUTER: Final[Mapping[str, Any]] = {
    "ismaster": True,
    "isWritablePrimary": True,
    "msg": "isdbgrid",
    "maxBsonObjectSize": 2**24,
    "maxMessageSizeBytes": 48_000_000,
    "maxWriteBatchSize": 100_000,
    "minWireVersion": 0,
    "maxWireVersion": 21,
    "ok": 1,
}


class ScriptedMongo:
    """Looks like a router (mongos). ``script`` gets each command and returns its answer, without ``ok``.

    ``commands``: the names of the commands until now, without those of the driver itself.
    """

    def __init__(self, script: Callable[[Command], Mapping[str, Any]]) -> None:
        self._script = script
        self.commands: list[str] = []
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def uri(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return f"mongodb://{host}:{port}/"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        numbers = itertools.count(1)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                length, request, _, code = _HEADER.unpack(await reader.readexactly(_HEADER.size))
                body = await reader.readexactly(length - _HEADER.size)
                answer = self._answer(_command(code, body))
                payload = struct.pack("<ib", 0, _DOCUMENT) + bson.encode(answer)
                writer.write(_HEADER.pack(_HEADER.size + len(payload), next(numbers), request, _MESSAGE) + payload)
                await writer.drain()
        self._connections.discard(writer)
        writer.transport.abort()

    def _answer(self, command: Command) -> Mapping[str, Any]:
        name = next(iter(command))
        if name.lower() in {"hello", "ismaster"}:
            return _ROUTER
        if name in {"endSessions", "killCursors"}:
            return {"ok": 1}
        self.commands.append(name)
        return {"ok": 1, **self._script(command)}


def _command(code: int, body: bytes) -> Command:
    if code == _QUERY:  # the first hello of a connection: flags, name of the collection, skip, limit
        return bson.decode(body[body.index(b"\0", 4) + 9 :])
    assert code == _MESSAGE
    command: Command = {}
    sections = memoryview(body)[4:]
    while sections:
        kind, (length,) = sections[0], struct.unpack_from("<i", sections, 1)
        section = bytes(sections[1 : 1 + length])
        if kind == _DOCUMENT:
            command = {**bson.decode(section), **command}
        else:
            assert kind == _SEQUENCE
            end = section.index(b"\0", 4)
            command[section[4:end].decode()] = bson.decode_all(section[end + 1 :])
        sections = sections[1 + length :]
    return command


@contextlib.asynccontextmanager
async def scripted(script: Callable[[Command], Mapping[str, Any]]) -> AsyncGenerator[ScriptedMongo]:
    server = ScriptedMongo(script)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
