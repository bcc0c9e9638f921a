"""Calls without a credential take no memory of a gRPC server, however large their messages are."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import grpc.aio
import pytest

from services.core.adapters.rpc.transport import dial
from services.core.runtime.address import Address
from tests.testbed.api_process import api_processes
from tests.testbed.server import free_address
from tests.waiting import HANG_S, tries_within, until

ROOT = Path(__file__).parents[2]
MIB = 2**20
SERVER = """
import asyncio, sys
from tests.testbed.intake import Intake

async def main():
    await Intake(sys.argv[1]).start()
    print("serving", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def most_memory(pid: int) -> int:
    """The most that a process has had resident, in bytes."""
    line = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert line is not None
    return int(line[1]) * 1024


def message(size: int) -> bytes:
    """A message that every method can parse: one field, which none knows."""
    length = b"".join(bytes([size >> shift & 0x7F | 0x80]) for shift in range(0, 28, 7)) + bytes([size >> 28])
    return b"\xc2\x3e" + length + bytes(size)


async def send(channel: Any, method: str, body: bytes, *, times: int) -> set[str]:
    """The outcomes of calls that are made at the same time."""

    async def call() -> str:
        try:
            await channel.unary_unary(method)(body, timeout=120)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return "OK"

    return set(await asyncio.gather(*(call() for _ in range(times))))


@asynccontextmanager
async def server_for_learners() -> AsyncGenerator[tuple[int, grpc.aio.Channel]]:
    """A server of the metrics service in a process of its own, and a channel without a credential."""
    address = free_address()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, address, cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"serving\n"
        async with dial(Address(address), options=()) as channel:
            yield process.pid, channel
    finally:
        process.kill()
        await process.communicate()  # also until its pipe is closed


async def test_large_calls_without_a_token_take_no_memory_of_the_metrics_service() -> None:
    async with server_for_learners() as (pid, channel):
        assert await send(channel, "/weft.v1.Intake/Append", b"", times=1) == {"UNAUTHENTICATED"}
        before = most_memory(pid)
        assert await send(channel, "/weft.v1.Intake/Append", message(15 * MIB), times=12) == {"UNAUTHENTICATED"}
        assert most_memory(pid) - before < 100 * MIB


OPEN = (
    "/weft.v1.Platform/GetVersion",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)


async def test_large_calls_without_a_key_take_no_memory_of_the_api(tmp_path: Path) -> None:
    async with api_processes(tmp_path, 1) as (api,), grpc.aio.insecure_channel(api.grpc_address) as channel:
        await until(lambda: _serves(channel))
        before = most_memory(api.pid)
        for method in ("/weft.v1.Jobs/GetJob", "/weft.v1.Jobs/FollowLogs", *OPEN):
            refused = {"INVALID_ARGUMENT" if method in OPEN else "UNAUTHENTICATED"}
            assert await send(channel, method, message(4 * MIB - 1024), times=1) == refused
            outcomes = await send(channel, method, message(4 * MIB - 1024), times=40)
            assert most_memory(api.pid) - before < 100 * MIB, method
            # A message without a key that takes long to receive makes room for other calls.
            assert outcomes <= (refused | {"UNAVAILABLE"} if method in OPEN else refused)


async def test_a_probe_is_answered_at_once_however_many_clients_call_without_a_message(tmp_path: Path) -> None:
    async with api_processes(tmp_path, 1) as (api,), grpc.aio.insecure_channel(api.grpc_address) as channel:
        await until(lambda: _serves(channel))
        for stopwatch in tries_within(2.0):
            idle: list[grpc.aio.StreamUnaryCall[bytes, bytes]] = [
                channel.stream_unary(method)() for method in OPEN * 100
            ]
            try:
                for call in idle:
                    with suppress(grpc.aio.AioRpcError):  # it has been ended
                        await call.wait_for_connection()
                with stopwatch:
                    for method in ("/grpc.health.v1.Health/Check", "/weft.v1.Platform/GetVersion"):
                        assert await send(channel, method, b"", times=1) == {"OK"}
            finally:
                for call in idle:
                    call.cancel()


class SilentClient:
    """A connection that makes calls and reads none of their answers: HTTP/2 with a window of no bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._stream = 1

    @classmethod
    async def open(cls, address: str) -> Self:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"\x00\x04" + bytes(4)) + _frame(4, 1, 0))
        return cls(reader, writer)

    async def call(self, method: str) -> None:
        """Begins a call with an empty message."""
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": "weft",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers.items())
        self._writer.write(_frame(1, 4, self._stream, block) + _frame(0, 1, self._stream, bytes(5)))
        self._stream += 2
        with suppress(ConnectionError):  # it was cut
            await self._writer.drain()

    async def ended(self) -> None:
        """Returns when the server has closed the connection."""
        with suppress(ConnectionError):
            await self._reader.read()

    def close(self) -> None:
        """At once: the server may never take what is still to be sent."""
        self._writer.transport.abort()


def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def watch(channel: grpc.aio.Channel) -> Any:
    """A Watch of the health."""
    method: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
    return method(b"")


async def _watched(channel: grpc.aio.Channel) -> Any:
    """The first answer to a new Watch of the health."""
    watching = watch(channel)
    try:
        return await asyncio.wait_for(watching.read(), HANG_S)
    finally:
        watching.cancel()


async def test_client_that_reads_no_answers_keeps_nobody_from_watching_the_health(tmp_path: Path) -> None:
    async with api_processes(tmp_path, 1) as (api,), grpc.aio.insecure_channel(api.grpc_address) as channel:
        await until(lambda: _serves(channel))
        silent = await SilentClient.open(api.grpc_address)
        try:
            for _ in range(10):
                await silent.call("/grpc.health.v1.Health/Watch")
            assert await _watched(channel) == b"\x08\x01", "SERVING"
            assert await _watched(channel) == b"\x08\x01", "SERVING"
        finally:
            silent.close()


@pytest.mark.parametrize("method", ["/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/Check", OPEN[0], OPEN[3]])
async def test_clients_that_never_end_calls_without_a_key_are_cut_off(tmp_path: Path, method: str) -> None:
    """Each such call takes memory of the api, and a connection may have a thousand of them."""
    async with api_processes(tmp_path, 1) as (api,), grpc.aio.insecure_channel(api.grpc_address) as channel:
        await until(lambda: _serves(channel))
        watching = watch(channel)
        assert await watching.read() == b"\x08\x01", "SERVING"
        silent = [await SilentClient.open(api.grpc_address) for _ in range(3)]
        try:
            ends = [asyncio.create_task(client.ended()) for client in silent]
            for _ in range(600):
                await asyncio.gather(*(client.call(method) for client in silent))
            await until(lambda: any(end.done() for end in ends))
            assert await until(lambda: _serves(channel)), "others are answered"
            assert not watching.done(), "others stay connected"
        finally:
            watching.cancel()
            for client in silent:
                client.close()


async def _serves(channel: grpc.aio.Channel) -> bool:
    return await send(channel, "/weft.v1.Platform/GetVersion", b"", times=1) == {"OK"}
