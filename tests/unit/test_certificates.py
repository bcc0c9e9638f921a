"""The installation's authority and the certificates of its services."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from services.core.adapters.certificates import issue, valid_until
from services.core.adapters.etcd.launcher import etcd_command
from services.core.adapters.rpc.server import serve
from services.core.domain.errors import Unavailable, WeftError
from services.core.gen.weft.v1 import control_pb2_grpc
from services.core.runtime.address import Address, TlsFiles
from services.core.runtime.home import Home
from services.core.runtime.operations_client import client_context
from services.local.doctor import examine
from tests.testbed.hints import Nudged, add_nudged, nudge
from tests.testbed.identities import credential, guard
from tests.testbed.server import free_port

NOW = dt.datetime.now(dt.UTC)
SERVICES = ("lcm", "api")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert issue(tmp_path / "tls", SERVICES, NOW) == list(SERVICES)
    return tmp_path / "tls"


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_files_are_readable_by_their_owner_only(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert {path.name for path in folder.iterdir()} == {
        "authority.pem",
        "authority.key",
        "lcm.pem",
        "lcm.key",
        "api.pem",
        "api.key",
    }


def test_a_second_start_changes_nothing(folder: Path) -> None:
    before = content(folder)
    assert issue(folder, SERVICES, NOW + dt.timedelta(days=100)) == []
    assert content(folder) == before


def test_certificates_are_renewed_at_half_of_their_time_under_the_same_keys(folder: Path) -> None:
    before, later = content(folder), NOW + dt.timedelta(days=183)
    assert issue(folder, SERVICES, later) == list(SERVICES)
    after = content(folder)
    assert {name for name in after if after[name] != before[name]} == {"lcm.pem", "api.pem"}
    assert valid_until(folder / "lcm.pem") > NOW + dt.timedelta(days=500)
    for service in SERVICES:
        client_context(TlsFiles.of(folder, service))  # raises where key and certificate do not belong together


def test_a_certificate_of_another_authority_is_made_anew(folder: Path, tmp_path: Path) -> None:
    issue(tmp_path / "other", SERVICES, NOW)
    (folder / "lcm.pem").write_bytes((tmp_path / "other" / "lcm.pem").read_bytes())
    assert issue(folder, SERVICES, NOW) == ["lcm"]


@pytest.mark.parametrize("name", ["authority.key", "authority.pem", "lcm.pem"])
def test_a_damaged_file_is_named_with_what_to_do(folder: Path, name: str) -> None:
    (folder / name).write_text("damaged")
    with pytest.raises(WeftError, match=rf"{name} is damaged; remove .*tls to make"):
        issue(folder, SERVICES, NOW)


def test_a_key_that_others_may_read_is_refused(folder: Path) -> None:
    (folder / "authority.key").chmod(0o644)
    with pytest.raises(WeftError, match=r"authority\.key is readable by others"):
        issue(folder, SERVICES, NOW)


async def test_a_server_answers_clients_of_its_authority_only(folder: Path, tmp_path: Path) -> None:
    text, strangers = f"tls:127.0.0.1:{free_port()}", tmp_path / "strangers"
    issue(strangers, SERVICES, NOW)
    server = await serve(Address(text, TlsFiles.of(folder, "lcm")), guard("lcm"), add_nudged)
    ours, theirs = TlsFiles.of(folder, "api"), TlsFiles.of(strangers, "api")
    await nudge(Address(text, ours), credential("api", "lcm"))
    mixed = TlsFiles(ours.authority, theirs.certificate, theirs.key)  # knows our authority, but is not of it
    for files in (theirs, mixed):
        with pytest.raises(Unavailable):
            await nudge(Address(text, files), credential("api", "lcm"))
    await server.stop(None)


async def test_a_client_sends_nothing_to_a_server_of_another_authority(folder: Path, tmp_path: Path) -> None:
    text = f"tls:127.0.0.1:{free_port()}"
    issue(tmp_path / "strangers", SERVICES, NOW)
    nudged = Nudged()

    def register(server: grpc.aio.Server) -> None:
        control_pb2_grpc.add_ControlServicer_to_server(nudged, server)

    server = await serve(Address(text, TlsFiles.of(tmp_path / "strangers", "lcm")), guard("lcm"), register)
    with pytest.raises(Unavailable):
        await nudge(Address(text, TlsFiles.of(folder, "api")), credential("api", "lcm"))
    assert nudged.heard == []
    await server.stop(None)


async def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "tls"
    issue(folder, SERVICES, NOW - dt.timedelta(days=183))
    server = await serve(Address(f"tls:127.0.0.1:{port}", TlsFiles.of(folder, "lcm")), guard("lcm"), add_nudged)
    first = await shown(port, TlsFiles.of(folder, "api"))
    assert issue(folder, SERVICES, NOW) == list(SERVICES)
    assert await shown(port, TlsFiles.of(folder, "api")) != first
    await server.stop(None)


async def shown(port: int, files: TlsFiles) -> bytes | None:
    """The certificate that the server shows."""
    context = client_context(files)
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
    certificate = tls.getpeercert(binary_form=True)
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()
    return certificate


@pytest.mark.parametrize(("age_days", "ok"), [(0, True), (330, True), (340, False), (400, False)])
def test_doctor_says_which_certificate_ends_first(tmp_path: Path, age_days: int, *, ok: bool) -> None:
    issue(tmp_path / "tls", SERVICES, NOW)
    (tmp_path / "tls" / "lcm.pem").unlink()
    issue(tmp_path / "tls", ("lcm",), NOW - dt.timedelta(days=age_days))
    (line,) = [line for line in examine(Home(tmp_path)) if line["check"] == "certificates"]
    assert line["ok"] is ok
    assert line["detail"].startswith("lcm.pem ends first" if age_days else "api.pem ends first")


def test_etcd_demands_certificates_of_clients_and_members(folder: Path) -> None:
    def at(port: int) -> Address:
        return Address(f"tls:127.0.0.1:{port}", TlsFiles.of(folder, "lcm"))

    command = etcd_command(Path("etcd"), (3, 5, 1), Path("d"), client=at(1), peer=at(2), token="t")
    for option in (
        "--listen-client-urls=https://127.0.0.1:1",
        "--listen-peer-urls=https://127.0.0.1:2",
        "--client-cert-auth=true",
        "--peer-client-cert-auth=true",
        f"--trusted-ca-file={folder}/authority.pem",
        f"--peer-trusted-ca-file={folder}/authority.pem",
    ):
        assert option in command


def test_files_from_outside_are_used_where_all_three_are_named() -> None:
    names = {f"WEFT_TLS_{name}_FILE": f"/{name}" for name in ("AUTHORITY", "CERTIFICATE", "KEY")}
    read: Callable[[dict[str, str]], TlsFiles | None] = TlsFiles.given
    assert read(names) == TlsFiles(Path("/AUTHORITY"), Path("/CERTIFICATE"), Path("/KEY"))
    assert read(dict(list(names.items())[:2])) is None
