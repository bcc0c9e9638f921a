"""Sockets of inner servers: only the platform's user reaches them, and one process serves each."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.core.adapters.rpc.client import connect
from services.core.adapters.rpc.server import serve
from services.core.domain.errors import InvalidRequest, Unavailable, WeftError
from services.core.runtime.address import SOCKET_PATH_BYTES, Address
from services.core.runtime.held_sockets import for_child, take_inherited
from services.core.runtime.sockets import (
    SocketPlace,
    connect_socket,
    make_private_folder,
    open_private_folder,
    remove_unfinished,
    set_connection_options,
)
from tests.testbed.hints import add_nudged, nudge
from tests.testbed.identities import credential, guard

ROOT = Path(__file__).parents[2]

LISTENS_AND_DIES = """
import os, signal, sys
from pathlib import Path
from services.core.runtime.sockets import SocketPlace

place = SocketPlace.take(Path(sys.argv[1]))
listener = place.listen(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_private_folder(tmp_path / "s")
    return tmp_path / "s"


@pytest.fixture(params=["short", "too-long-for-a-socket"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    place = tmp_path if request.param == "short" else tmp_path / ("x" * 120) / "home"
    make_private_folder(place / "s")
    yield place / "s" / "lcm"
    remove_unfinished(place / "s")


async def test_calls_reach_a_server_whatever_the_length_of_its_path(path: Path) -> None:
    server = await serve(f"unix:{path}", guard("lcm"), add_nudged)
    await nudge(f"unix:{path}", credential("api", "lcm"))
    await server.stop(None)


async def test_a_second_server_is_refused_and_the_first_goes_on(path: Path) -> None:
    server = await serve(f"unix:{path}", guard("lcm"), add_nudged)
    with pytest.raises(WeftError, match="another process serves there"):
        await serve(f"unix:{path}", guard("lcm"), add_nudged)
    with pytest.raises(WeftError, match="another process serves there"):
        SocketPlace.take(path)
    await nudge(f"unix:{path}", credential("api", "lcm"))
    await server.stop(None)
    with pytest.raises(Unavailable):
        await nudge(f"unix:{path}", credential("api", "lcm"))


async def test_a_server_takes_the_place_of_a_socket_that_a_killed_process_has_left(path: Path) -> None:
    for _ in range(2):
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", LISTENS_AND_DIES, path, cwd=ROOT)
        assert await child.wait() == -signal.SIGKILL
        assert stat.S_ISSOCK(path.stat().st_mode)
        with pytest.raises(ConnectionRefusedError):
            connect_socket(path, 5)
        server = await serve(f"unix:{path}", guard("lcm"), add_nudged)
        await nudge(f"unix:{path}", credential("api", "lcm"))
        await server.stop(None)
    assert [entry.name for entry in path.parent.iterdir() if entry.name.startswith(".")] == []


def test_unfinished_sockets_of_killed_processes_are_removed(folder: Path) -> None:
    place = SocketPlace.take(folder / "lcm")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place.temporary)
    place.release()
    assert len(list(folder.glob(".new-*"))) == 1
    remove_unfinished(folder)
    assert list(folder.glob(".new-*")) == []


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701, 0o1777])
def test_a_folder_that_others_may_enter_is_refused_by_servers_and_clients(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    for use in (
        lambda: SocketPlace.take(folder / "lcm"),
        lambda: connect(f"unix:{folder}/lcm", credential("api", "lcm")),
    ):
        with pytest.raises(WeftError, match="with mode 0700"):
            use()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_this_user_in_a_pods_volume_is_private_once_it_is_made_so(tmp_path: Path) -> None:
    folder = tmp_path / "of a group"
    folder.mkdir()
    folder.chmod(0o2700)  # as a volume with fsGroup hands it down
    make_private_folder(folder)
    os.close(open_private_folder(folder))


def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    os.chown(folder, 65534, 65534)
    with pytest.raises(WeftError, match="must belong to user 0"):
        connect_socket(folder / "lcm", 5)
    with pytest.raises(WeftError, match="must belong to user 0"):
        make_private_folder(folder)


def test_a_link_in_the_place_of_the_folder_is_refused(folder: Path) -> None:
    (folder.parent / "link").symlink_to(folder)
    with pytest.raises(WeftError, match="no folder for sockets"):
        SocketPlace.take(folder.parent / "link" / "lcm")


def test_a_link_in_the_place_of_a_lock_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "lcm.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WeftError, match="cannot listen"):
        SocketPlace.take(folder / "lcm")
    assert not (tmp_path / "elsewhere").exists()


def test_a_missing_folder_means_that_the_service_is_not_there_yet(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="does not exist yet"):
        connect(f"unix:{tmp_path}/none/lcm", credential("api", "lcm"))


async def test_plain_tcp_is_refused_by_inner_servers_and_their_clients() -> None:
    with pytest.raises(InvalidRequest, match="is plain TCP"):
        await serve("127.0.0.1:1", guard("lcm"), add_nudged)
    with pytest.raises(InvalidRequest, match="is plain TCP"):
        connect("127.0.0.1:1", credential("api", "lcm"))


async def test_tls_without_certificates_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="WEFT_TLS_AUTHORITY_FILE"):
        await serve("tls:127.0.0.1:1", guard("lcm"), add_nudged)


def test_the_limit_of_a_path_is_the_kernel_s(tmp_path: Path) -> None:
    fits = tmp_path / ("x" * (SOCKET_PATH_BYTES - len(str(tmp_path)) - 1))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(fits))
    with socket.socket(socket.AF_UNIX) as listener, pytest.raises(OSError, match="too long"):
        listener.bind(f"{fits}y")


def test_a_child_inherits_the_sockets_that_are_held_for_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        variables, descriptors = for_child({"api": held})
        assert descriptors == (held.fileno(),)
        copy = os.dup(held.fileno())
        inherited = take_inherited(
            {name: text.replace(str(held.fileno()), str(copy)) for name, text in variables.items()}
        )
        with inherited["api"] as taken:
            assert taken.getsockname() == held.getsockname()
            assert not taken.get_inheritable()
    assert take_inherited({}) == {}


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "unix:/s/lcm", "tls:1"])
def test_an_address_without_host_or_port_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="no address of the form"):
        _ = Address(text).host_port


def test_host_and_port_of_each_form_are_read() -> None:
    forms = ("a:1", "tls:a:1", "[::1]:1", "tls:[::1]:1")
    assert [Address(text).host_port for text in forms] == [("a", 1), ("a", 1), ("::1", 1), ("::1", 1)]


def test_connection_of_a_tcp_listener_finds_out_that_its_client_vanished() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        set_connection_options(listener)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as connection:
            tcp = socket.IPPROTO_TCP
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            idle, every, probes = (
                connection.getsockopt(tcp, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle + every * probes == 120
            assert connection.getsockopt(tcp, socket.TCP_NODELAY) == 1
