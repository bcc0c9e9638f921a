"""Calls without a credential take no memory of a gRPC server, however large their messages are."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc.aio

from services.core.adapters.rpc.transport import dial
from services.core.runtime.address import Address
from tests.testbed.api_process import api_processes
from tests.testbed.server import free_address
from tests.waiting import tries_within, until

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
        await process.wait()


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


async def _serves(channel: grpc.aio.Channel) -> bool:
    return await send(channel, "/weft.v1.Platform/GetVersion", b"", times=1) == {"OK"}
