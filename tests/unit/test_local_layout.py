"""Addresses of the platform's processes on one machine."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from services.core.adapters.folder.objects import STAGING, FolderObjectStore
from services.core.domain.errors import Unavailable, WeftError
from services.core.runtime.home import Home
from services.local.doctor import examine, host_name_check
from services.local.layout import FOR_USERS, INNER, inner_addresses, listen_for_users, prepare


def record(home: Home, addresses: dict[str, str]) -> None:
    home.addresses_file.parent.mkdir(exist_ok=True)
    home.addresses_file.write_text(json.dumps(addresses))


def listen(home: Home, **requests: int) -> dict[str, str]:
    """The addresses for users; they are free again afterwards."""
    with ExitStack() as stack:
        listeners = listen_for_users(home, host="127.0.0.1", port=requests.get("port", 0))
        for listener in listeners.values():
            stack.enter_context(listener)
        return {name: "{}:{}".format(*listener.getsockname()) for name, listener in listeners.items()}


def test_every_inner_server_gets_a_socket_of_its_own_and_no_port(tmp_path: Path) -> None:
    addresses = inner_addresses(Home(tmp_path), "sockets", "sockets")
    assert addresses.keys() == set(INNER)
    assert len(set(addresses.values())) == len(INNER)
    assert {str(Path(address).parent) for address in addresses.values()} == {f"unix:{tmp_path}/run/s"}


def test_operations_addresses_may_demand_tls_while_all_others_are_sockets(tmp_path: Path) -> None:
    addresses = inner_addresses(Home(tmp_path), "sockets", "tls")
    assert {name for name, address in addresses.items() if address.startswith("tls:")} == {
        f"{service}-ops" for service in ("metrics", "node", "lcm", "guardian", "api", "worker")
    }


def test_chosen_ports_are_outside_the_range_of_outgoing_connections(tmp_path: Path) -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    addresses = {**inner_addresses(Home(tmp_path), "tls", "tls"), **listen(Home(tmp_path))}
    ports = [int(address.rpartition(":")[2]) for address in addresses.values()]
    assert addresses.keys() == {*INNER, *FOR_USERS}
    assert [port for port in ports if low <= port <= high] == []


def test_addresses_for_users_are_reused_while_their_ports_are_free(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = listen(home)
    record(home, first)
    assert listen(home) == first
    with socket.create_server(("127.0.0.1", int(first["api"].rpartition(":")[2]))):
        second = listen(home)
    assert second["api"] != first["api"]
    assert second["api-grpc"] == first["api-grpc"]


def test_a_switch_from_sockets_to_tls_takes_no_port_from_the_name_of_a_socket(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / "run").mkdir()
    home.addresses_file.write_text(json.dumps(inner_addresses(home, "sockets", "sockets")))
    ports = [int(address.rpartition(":")[2]) for address in inner_addresses(home, "tls", "tls").values()]
    assert min(ports) > 1_023


def test_tls_addresses_are_reused_and_no_two_servers_get_one_port(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = inner_addresses(home, "tls", "tls")
    record(home, first)
    assert inner_addresses(home, "tls", "tls") == first
    record(home, {**first, "guardian": first["lcm"]})
    assert len(set(inner_addresses(home, "tls", "tls").values())) == len(INNER)


def test_a_requested_port_that_is_taken_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        advice = f"give another with `weft up --port N --home {tmp_path}`"
        with pytest.raises(WeftError, match=f"port {port} is taken; {advice}"):
            listen(Home(tmp_path), port=port)


async def test_weft_up_makes_the_object_store_of_a_new_home_and_no_other_where_it_is_not_mounted(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "home")
    prepare(home)
    objects = home / "objects"
    await FolderObjectStore(objects).ping()
    objects.rename(tmp_path / "volume")
    prepare(home)  # after a reboot
    assert list(objects.iterdir()) == []
    with pytest.raises(Unavailable, match="mount its volume"):
        await FolderObjectStore(objects).ping()
    objects.rmdir()
    (tmp_path / "volume").rename(objects)
    prepare(home)
    await FolderObjectStore(objects).ping()


async def test_an_object_store_with_objects_and_no_mark_is_used_after_an_upgrade(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    prepare(home)
    (home / "objects" / STAGING).rmdir()
    (home / "objects" / "tenants").mkdir()
    prepare(home)
    await FolderObjectStore(home / "objects").ping()


def test_commands_that_doctor_prints_name_the_folder_of_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`weft doctor --home DIR` said `weft down`, which stops another platform."""
    monkeypatch.setenv("WEFT_FAILPOINTS", "")
    (check,) = [check for check in examine(Home(tmp_path / "a b")) if check["check"] == "failpoints"]
    folder = f"'{tmp_path / 'a b'}'"
    assert f"weft down --home {folder} && weft up --home {folder}" in check["fix"]


def test_doctor_names_the_line_of_etc_hosts_that_a_gang_needs() -> None:
    """JAX's learners ended with "gloo/transport/tcp/device.cc:99] rv == 0. -2 vs 0"."""
    _, ok, detail, fix = host_name_check("no name.invalid")
    assert not ok
    assert detail.startswith("no name.invalid has no address: ")
    assert "'127.0.1.1 no name.invalid' to /etc/hosts" in fix
    assert host_name_check("localhost")[1]
