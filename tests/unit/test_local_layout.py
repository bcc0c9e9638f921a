"""Addresses of the platform's processes on one machine."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from services.core.runtime.home import Home
from services.local.layout import ADDRESSES, choose_addresses


def record(home: Home, addresses: dict[str, str]) -> None:
    home.addresses_file.parent.mkdir(exist_ok=True)
    home.addresses_file.write_text(json.dumps(addresses))


def ports_of(addresses: dict[str, str]) -> list[int]:
    return [int(address.rpartition(":")[2]) for address in addresses.values()]


def test_chosen_ports_are_outside_the_range_of_outgoing_connections(tmp_path: Path) -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = ports_of(choose_addresses(Home(tmp_path), host="127.0.0.1", port=0))
    assert len(set(ports)) == len(ADDRESSES)
    assert [port for port in ports if low <= port <= high] == []


def test_addresses_are_reused_while_their_ports_are_free(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = choose_addresses(home, host="127.0.0.1", port=0)
    record(home, first)
    assert choose_addresses(home, host="127.0.0.1", port=0) == first
    with socket.create_server(("127.0.0.1", int(first["lcm"].rpartition(":")[2]))):
        second = choose_addresses(home, host="127.0.0.1", port=0)
    assert second["lcm"] != first["lcm"]
    assert {**second, "lcm": first["lcm"]} == first


def test_every_service_gets_its_own_port(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = choose_addresses(home, host="127.0.0.1", port=0)
    record(home, {**first, "guardian": first["lcm"]})
    assert len(set(ports_of(choose_addresses(home, host="127.0.0.1", port=0)))) == len(ADDRESSES)
