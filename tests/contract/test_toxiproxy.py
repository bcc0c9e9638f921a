"""The test bed's network fails as its methods say; the tests that use it depend on that."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from tests.testbed.toxiproxy import Line, Toxiproxy
from tests.waiting import HANG_S, eventually


class Echo(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.received: list[bytes] = []


class _Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Echo)
        for line in self.rfile:
            self.server.received.append(line)
            self.wfile.write(line)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def line(toxiproxy: Toxiproxy, echo: Echo) -> Line:
    return toxiproxy.to("{}:{}".format(*echo.server_address[:2]))


def connected(line: Line) -> socket.socket:
    host, _, port = line.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=HANG_S)


def answer(connection: socket.socket, question: bytes) -> bytes:
    """The reply; empty if the connection ended."""
    try:
        connection.sendall(question)
        return connection.recv(100)
    except ConnectionError:
        return b""


def test_a_line_passes_requests_and_replies(line: Line) -> None:
    with connected(line) as connection:
        assert answer(connection, b"hello\n") == b"hello\n"


def test_a_cut_line_breaks_and_refuses_connections_until_mended(line: Line) -> None:
    with connected(line) as connection:
        assert answer(connection, b"before\n") == b"before\n"
        line.cut()
        assert answer(connection, b"after\n") == b""
    with pytest.raises(ConnectionRefusedError):
        connected(line)
    line.mend()
    with connected(line) as connection:
        assert answer(connection, b"again\n") == b"again\n"


def test_a_delay_precedes_each_reply(line: Line) -> None:
    line.delay(0.3)
    with connected(line) as connection:
        began = time.monotonic()
        assert answer(connection, b"slow\n") == b"slow\n"
        assert time.monotonic() - began >= 0.3


def test_the_request_of_a_lost_reply_arrives(line: Line, echo: Echo) -> None:
    line.lose_answers()
    with connected(line) as connection:
        assert answer(connection, b"done\n") == b""
    assert echo.received == [b"done\n"]
    line.mend()
    with connected(line) as connection:
        assert answer(connection, b"again\n") == b"again\n"


def test_replies_end_after_a_number_of_bytes(line: Line) -> None:
    line.limit_answers(10)
    with connected(line) as connection:
        connection.sendall(b"0123456\n" * 3)
        with connection.makefile("rb") as answers:
            assert answers.read() == b"0123456\n01"


def test_a_silent_line_neither_replies_nor_breaks(line: Line, echo: Echo) -> None:
    line.silence()
    with connected(line) as connection:
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            answer(connection, b"hello\n")
        eventually(lambda: echo.received == [b"hello\n"])
