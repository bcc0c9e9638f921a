"""What clients take of the api before they have authenticated is bounded, over REST and gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path

import grpc.aio
import pytest
from google.protobuf.empty_pb2 import Empty

from services.api.connection_limits import connections
from services.api.grpc.relay import Relay
from services.core.runtime.sockets import SocketPlace, make_private_folder
from tests.testbed.api import Api, running_api
from tests.testbed.user_rpc import speaking
from tests.waiting import HANG_S, until

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HEADERS_S = 1.0
"""Within which the headers of a request have to come. Those of a busy machine do."""


async def connect(api: Api) -> Streams:
    host, _, port = api.url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


async def answer(streams: Streams) -> bytes:
    """All that the server sends before it closes the connection; empty if the connection is reset."""
    reader, writer = streams
    try:
        return await asyncio.wait_for(reader.read(), HANG_S)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def close(open_streams: list[Streams]) -> None:
    for _, writer in open_streams:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    "sent", [b"", b"GET /v1/version HTTP/1.1\r\nHost: x\r\nX-Slow: "], ids=["nothing", "half of the headers"]
)
async def test_client_that_does_not_send_its_headers_is_answered_408(tmp_path: Path, sent: bytes) -> None:
    async with running_api(tmp_path, headers_s=HEADERS_S) as api:
        streams = await connect(api)
        streams[1].write(sent)
        assert (await answer(streams)).startswith(b"HTTP/1.1 408 ")
        assert (await api.admin.get("/v1/version")).status_code == 200


async def test_second_request_of_a_connection_that_stays_half_sent_is_answered_408(tmp_path: Path) -> None:
    async with running_api(tmp_path, headers_s=HEADERS_S) as api:
        streams = await connect(api)
        streams[1].write(b"GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(streams[0].readuntil(b"}"), HANG_S)
        streams[1].write(b"GET /v1/version HTTP/1.1\r\nHost:")
        assert b"HTTP/1.1 408 " in await answer(streams)


async def test_a_stream_that_lives_longer_than_headers_may_take_is_not_cut(tmp_path: Path) -> None:
    async with running_api(tmp_path, headers_s=HEADERS_S, keepalive_s=0.02) as api:
        job = (await api.submit())["id"]
        async with api.admin.stream("GET", f"/v1/jobs/{job}/events", params={"follow": "true"}) as response:
            begun, received = time.monotonic(), 0
            async for _ in response.aiter_bytes():
                received += 1
                if received > 10 and time.monotonic() > begun + 2 * HEADERS_S:
                    break
        assert received > 10


async def test_client_with_too_many_connections_is_answered_429_and_one_that_ends_makes_room(tmp_path: Path) -> None:
    async with running_api(tmp_path, max_client_connections=4) as api:
        held = [await connect(api) for _ in range(4)]
        await until(lambda: 'weft_api_connections{listener="rest"} 4.0' in api.measured())
        assert (await answer(await connect(api))).startswith(b"HTTP/1.1 429 ")
        assert 'weft_api_connections_refused_total{listener="rest",why="client"} 1.0' in api.measured()
        await close(held[:1])
        await until(lambda: 'weft_api_connections{listener="rest"} 3.0' in api.measured())
        late = await connect(api)
        late[1].write(b"GET /v1/version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await answer(late)).startswith(b"HTTP/1.1 200 ")
        await close(held[1:])


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    await reader.read()
    writer.close()


async def test_grpc_on_a_port_of_its_own_has_a_bound_of_connections_for_each_client(tmp_path: Path) -> None:
    """As in containers and on Kubernetes, where no supervisor holds the port."""
    async with running_api(tmp_path, max_client_connections=2) as api:
        host, _, port = api.grpc.rpartition(":")
        first = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        assert await answer(await asyncio.open_connection(host, int(port))) == b""
        await close(first)

        async def serves() -> bool:
            async with speaking(api.grpc, api.admin_key) as rpc:
                try:
                    return bool((await rpc.keys.WhoAmI(Empty(), metadata=rpc.metadata)).user)
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.UNAVAILABLE:  # it has not noticed yet that the others ended
                        return False
                    raise

        assert await until(serves)


async def test_relay_to_grpc_has_a_bound_of_connections_for_each_client(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    make_private_folder(folder)
    place = SocketPlace.take(folder / "behind")
    async with running_api(tmp_path / "home", max_client_connections=2) as api:
        held = socket.create_server(("127.0.0.1", 0))
        behind = await asyncio.start_unix_server(greet, sock=place.listen(10))
        bounded = connections("grpc", api.settings.model_copy(), api.services.instrumentation)
        relay = Relay(held, folder / "behind", bounded)
        await relay.start()
        try:
            first = [await asyncio.open_connection(*held.getsockname()) for _ in range(2)]
            for reader, _ in first:
                assert await asyncio.wait_for(reader.readexactly(5), HANG_S) == b"hello"
            assert await answer(await asyncio.open_connection(*held.getsockname())) == b""
            await close(first[:1])
            await until(lambda: len(bounded) == 1)
            again = await asyncio.open_connection(*held.getsockname())
            assert await asyncio.wait_for(again[0].readexactly(5), HANG_S) == b"hello"
            await close([*first[1:], again])
        finally:
            await relay.close()
            behind.close()
            place.release()
