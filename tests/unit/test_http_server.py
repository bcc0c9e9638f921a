"""A service's own HTTP server, which hardly wakes up while nobody calls it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from services.core.bootstrap.http import HttpServer
from services.core.runtime.address import Address
from tests.waiting import until


async def test_answers_have_the_date_of_now_and_the_server_ends_when_it_is_told_to() -> None:
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("ok"))])
    stopping = asyncio.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as held:
        host, port = held.getsockname()[:2]
        server = HttpServer(app, Address(f"{host}:{port}"), held=held)
        serving = asyncio.create_task(server.serve(stopping))

        async def date() -> str:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = (await reader.read()).decode()
            writer.close()
            await writer.wait_closed()
            return answer.partition("\r\ndate: ")[2].partition("\r\n")[0]

        first = await until(date)

        async def is_later() -> bool:
            return await date() != first

        await until(is_later)
        stopping.set()
        await serving
