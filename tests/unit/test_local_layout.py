"""Where the platform's processes listen."""

from __future__ import annotations

import socket
from pathlib import Path

from services.core.runtime.home import Home
from services.local.layout import ADDRESSES, choose_addresses, write_json


def ports_of(addresses: dict[str, str]) -> list[int]:
    return [int(address.rpartition(":")[2]) for address in addresses.values()]


def test_no_outgoing_connection_takes_the_port_of_a_service_that_is_being_started_again(tmp_path: Path) -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = ports_of(choose_addresses(Home(tmp_path), host="127.0.0.1", port=0))
    assert len(set(ports)) == len(ADDRESSES)
    assert [port for port in ports if low <= port <= high] == []


def test_addresses_stay_while_they_are_free(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = choose_addresses(home, host="127.0.0.1", port=0)
    write_json(home.addresses_file, first)
    assert choose_addresses(home, host="127.0.0.1", port=0) == first
    with socket.create_server(("127.0.0.1", int(first["lcm"].rpartition(":")[2]))):
        second = choose_addresses(home, host="127.0.0.1", port=0)
    assert second["lcm"] != first["lcm"]
    assert {**second, "lcm": first["lcm"]} == first


def test_two_services_are_never_given_one_port(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = choose_addresses(home, host="127.0.0.1", port=0)
    write_json(home.addresses_file, {**first, "guardian": first["lcm"]})
    assert len(set(ports_of(choose_addresses(home, host="127.0.0.1", port=0)))) == len(ADDRESSES)
