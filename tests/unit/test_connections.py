"""Connections are bounded for each client and in all, and their clients are named by the kernel."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from services.core.runtime import connections
from services.core.runtime.client_names import client_name
from services.core.runtime.connections import Connections, affordable
from tests.waiting import until


@pytest.fixture
def server() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_client_of_this_machine_is_named_by_its_user_whatever_its_address(server: socket.socket) -> None:
    with server, socket.create_connection(server.getsockname(), source_address=("127.0.0.77", 0)):
        accepted, peer = server.accept()
        with accepted:
            assert client_name(accepted.getsockname(), peer) == f"uid {os.geteuid()}"


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process can be started by root only")
def test_users_of_this_machine_are_different_clients(server: socket.socket) -> None:
    port = server.getsockname()[1]
    child = os.fork()
    if child == 0:
        os.setresuid(70_123, 70_123, 70_123)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.recv(1)
        os._exit(0)
    with server:
        accepted, peer = server.accept()
        assert client_name(accepted.getsockname(), peer) == "uid 70123"
        accepted.close()
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        (("192.0.2.7", 5), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::/64"),
        (("::ffff:192.0.2.7", 5, 0, 0), "192.0.2.7"),
    ],
)
def test_client_of_another_machine_is_named_by_its_address(peer: tuple[str, int], name: str) -> None:
    server = "203.0.113.1" if "." in peer[0] and ":" not in peer[0] else "2001:db8::1"
    assert client_name((server, 7070), peer) == name


def test_connection_of_a_unix_socket_has_no_client() -> None:
    assert client_name("", "") == ""


class Clients:
    """Connections to a listener, whose clients have the names that the test gives them."""

    def __init__(self, most: int, most_of_client: int) -> None:
        self.refused: list[str] = []
        self.bounded = Connections(most=most, most_of_client=most_of_client, count_refused=self.refused.append)
        self._names: dict[int, str] = {}
        self._address: tuple[str, int] = ("", 0)
        self.writers: list[asyncio.StreamWriter] = []

    def name(self, server: tuple[str, int], peer: tuple[str, int]) -> str:
        return self._names[peer[1]]

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        clients = self

        class Server(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                self.transport = transport
                if not clients.bounded.admit(transport):
                    transport.abort()

            def connection_lost(self, exc: Exception | None) -> None:
                clients.bounded.left(self.transport)

        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
        self._address = server.sockets[0].getsockname()
        async with server:
            try:
                yield
            finally:
                for writer in self.writers:
                    writer.close()

    async def connect(self, name: str) -> asyncio.StreamReader:
        """Returns once the server has counted or refused the connection."""
        before = len(self.bounded), len(self.refused)
        place = socket.socket()
        place.bind(("127.0.0.1", 0))
        self._names[place.getsockname()[1]] = name
        place.setblocking(False)
        await asyncio.get_running_loop().sock_connect(place, self._address)
        reader, writer = await asyncio.open_connection(sock=place)
        self.writers.append(writer)
        await until(lambda: (len(self.bounded), len(self.refused)) != before)
        return reader


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    clients = Clients(most=4, most_of_client=3)
    monkeypatch.setattr(connections, "client_name", clients.name)
    return clients


async def test_client_with_too_many_connections_is_refused_until_one_ends(clients: Clients) -> None:
    async with clients.listening():
        readers = [await clients.connect("greedy") for _ in range(4)]
        assert clients.refused == ["client"]
        assert await readers[3].read() == b""
        clients.writers[0].close()
        await until(lambda: len(clients.bounded) == 2)
        await clients.connect("greedy")
        assert clients.refused == ["client"]


async def test_client_gets_a_connection_although_others_have_taken_all(clients: Clients) -> None:
    async with clients.listening():
        readers = [await clients.connect(name) for name in ("greedy", "greedy", "greedy", "other")]
        await clients.connect("modest")
        assert clients.refused == ["evicted"]
        assert await readers[0].read() == b""
        assert len(clients.bounded) == 4


async def test_client_that_has_as_many_as_any_other_is_refused_if_all_are_taken(clients: Clients) -> None:
    async with clients.listening():
        for name in ("a", "a", "b", "b"):
            await clients.connect(name)
        await clients.connect("a")
        await clients.connect("b")
        assert Counter(clients.refused) == {"all": 2}


def test_connections_leave_files_for_the_rest_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.core.runtime.connections.resource.getrlimit", lambda _: (1024, 4096))
    assert affordable(4096, descriptors=3, share=0.5) == 170
    assert affordable(100, descriptors=3, share=0.5) == 100
