"""Try a checkout on fresh machines: minimal Debian root file systems, an ordinary user, paths with spaces, umask 077.

    python scripts/fresh_machines.py                            make demo on Debian 12 and 13, then again offline
    python scripts/fresh_machines.py --suite trixie --run "make setup"
    python scripts/fresh_machines.py --interpreter /opt/python3.12

Needs root, mmdebstrap, util-linux and a network. Each machine is a root file system of its own, made by mmdebstrap and
entered by unshare with mounts and process ids of its own; the second run has no network. What is committed is tried.
pip's and uv's settings, and the authorities of this system, count there, too. Prints a table; exits with 1 if a run
failed. Nothing is left but the logs of failed runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SUITES: Final = {"bookworm": "Debian 12", "trixie": "Debian 13"}
PACKAGES: Final = ("make", "python3", "python3-venv", "ca-certificates", "iproute2")
"""iproute2 is for the machine itself: its loopback interface is started without a network, too."""
USER: Final = 1000
HOME: Final = "/home/ada lovelace"
CHECKOUT: Final = f"{HOME}/a checkout"
AUTHORITIES: Final = "etc/ssl/certs/ca-certificates.crt"
FROM_HOST: Final = ("etc/resolv.conf", "etc/pip.conf", AUTHORITIES)
SETTINGS: Final = ("PIP_", "UV_", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
INIT: Final = """\
set -e
mount --rbind /dev "$1/dev"
mount --make-rslave "$1/dev"
mount -t proc proc "$1/proc"
if [ -n "$2" ]; then mkdir -p "$1$2"; mount --bind "$2" "$1$2"; fi
exec chroot "$1" /bin/sh -c 'ip link set lo up 2> /dev/null || true
    umask 077
    cd "$1"
    exec setpriv --reuid "$2" --regid "$2" --clear-groups --no-new-privs /bin/sh -c "$3"' sh "$3" "$4" "$5"
"""
"""Root file system, interpreter's folder (may be empty), folder, user, command."""


@dataclass(frozen=True, slots=True)
class Run:
    """One row of the table."""

    machine: str
    command: str
    network: bool
    code: int


def make_machine(suite: str, root: Path) -> None:
    """A minimal Debian with an ordinary user and the committed files of this checkout. Raises CalledProcessError."""
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}", suite, str(root)], check=True
    )
    for name in FROM_HOST:
        if (path := Path("/", name)).exists():
            shutil.copyfile(path, root / name)
    with (root / "etc/passwd").open("a") as users:
        users.write(f"ada:x:{USER}:{USER}::{HOME}:/bin/sh\n")
    checkout = root / CHECKOUT.removeprefix("/")
    checkout.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(checkout)], input=archive, check=True)
    subprocess.run(["chown", "-R", f"{USER}:{USER}", str(root / HOME.removeprefix("/"))], check=True)


def run_inside(root: Path, command: str, log: Path, *, network: bool, interpreter: str) -> int:
    """Runs the command as the user. Returns its exit code; its output is in ``log``."""
    kept = {name: value for name, value in os.environ.items() if name.upper().startswith(SETTINGS)}
    environment: Mapping[str, str] = {
        **kept, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": HOME, "LANG": "C.UTF-8",
        **({"WEFT_PYTHON": f"{interpreter}/bin/python3"} if interpreter else {}),
    }  # fmt: skip
    separate = ["--mount", "--pid", "--fork", "--kill-child", *([] if network else ["--net"])]
    inside = ["/bin/sh", "-c", INIT, "sh", str(root), interpreter, CHECKOUT, str(USER), command]
    with log.open("wb") as output:
        return subprocess.run(
            ["unshare", *separate, *inside], env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, check=False,
        ).returncode  # fmt: skip


def try_machine(suite: str, command: str, interpreter: str, folder: Path) -> list[Run]:
    """Runs the command with a network, and again without."""
    machine = f"{SUITES[suite]}{f', {interpreter}' if interpreter else ''}"
    root = Path(tempfile.mkdtemp(prefix="weft-fresh-"))
    root.chmod(0o755)
    runs: list[Run] = []
    try:
        print(f"{machine}: making a root file system", flush=True)
        make_machine(suite, root)
        for network in (True, False):
            print(f"{machine}: {command}{'' if network else ', without a network'}", flush=True)
            log = folder / f"{suite}-{'online' if network else 'offline'}.log"
            code = run_inside(root, command, log, network=network, interpreter=interpreter)
            if code:
                print(
                    f"  exit code {code}; the end of {log}:",
                    *log.read_text(errors="replace").splitlines()[-15:],
                    sep="\n  ",
                )
            else:
                log.unlink()
            runs.append(Run(machine, command, network, code))
    finally:
        # Mounts were made in the machine's own mount namespace, which has ended: this removes files only.
        subprocess.run(["rm", "-rf", "--one-file-system", str(root)], check=True)
    return runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", action="append", choices=SUITES, help="repeatable; by default all")
    parser.add_argument("--run", default="make demo", metavar="COMMAND", help="what the user types (make demo)")
    parser.add_argument(
        "--interpreter", default="", metavar="DIR", help="a Python on this machine, e.g. /opt/python3.12"
    )
    args = parser.parse_args(arguments)
    missing = [program for program in ("mmdebstrap", "unshare", "setpriv", "git") if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        print("this needs root, and mmdebstrap, unshare, setpriv, git; missing:", *missing, file=sys.stderr)
        return 2
    # A terminated run removes its root file system, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = ROOT / "build" / "fresh"
    folder.mkdir(parents=True, exist_ok=True)
    runs = [run for suite in args.suite or SUITES for run in try_machine(suite, args.run, args.interpreter, folder)]
    print("\n| machine | command | network | result |\n|---|---|---|---|")
    for run in runs:
        result = "works" if run.code == 0 else f"exit code {run.code}"
        print(f"| {run.machine} | `{run.command}` | {'yes' if run.network else 'no'} | {result} |")
    return int(any(run.code for run in runs))


if __name__ == "__main__":
    sys.exit(main())
