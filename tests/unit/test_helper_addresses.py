"""Addresses that data may be fetched from."""

from __future__ import annotations

import socket

import pytest

from services.helper.fetch.addresses import check_url
from services.helper.fetch.progress import FetchFailed


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Every name resolves to these addresses."""

    def answer(_host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", answer)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.9.9",
        "192.168.1.1",
        "169.254.169.254",
        "0.0.0.1",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fd00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "198.18.0.1",
        "192.0.2.1",
    ],
)
def test_private_address_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    resolving(monkeypatch, address)
    with pytest.raises(FetchFailed, match="WEFT_HTTP_ALLOW") as refused:
        check_url("http://data.example/x.csv", ())
    assert refused.value.reason == "DataStoreDenied"


def test_name_with_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, "93.184.216.34", "127.0.0.1")
    with pytest.raises(FetchFailed):
        check_url("https://data.example/x.csv", ())


def test_connection_goes_to_the_checked_address(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, "93.184.216.34")
    checked = check_url("https://data.example:8443/x.csv?v=1#part", ())
    assert (checked.address, checked.host, checked.port, checked.target) == (
        "93.184.216.34",
        "data.example",
        8443,
        "/x.csv?v=1",
    )


@pytest.mark.parametrize("allowed", [("10.0.0.0/8",), ("data.example",), ("other", "10.1.2.3")])
def test_operator_can_allow_a_host_or_a_network(monkeypatch: pytest.MonkeyPatch, allowed: tuple[str, ...]) -> None:
    resolving(monkeypatch, "10.1.2.3")
    assert check_url("http://data.example/x", allowed).address == "10.1.2.3"


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://host/x", "http://", "//host/x", "http://h:99999/x", "http://u:p@h/x", "gopher://h"],
)
def test_addresses_other_than_http_are_refused(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    resolving(monkeypatch, "93.184.216.34")
    with pytest.raises(FetchFailed, match="no http or https address"):
        check_url(url, ())
