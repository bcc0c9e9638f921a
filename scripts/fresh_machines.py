"""Try a checkout on fresh machines: minimal Debian root file systems, an ordinary user, paths with spaces, umask 077.

    python scripts/fresh_machines.py                               every step on Debian 11 to 13
    python scripts/fresh_machines.py --suite trixie --step demo    one row of the table; steps that need it follow
    python scripts/fresh_machines.py --interpreter /opt/python3.12

Needs root, mmdebstrap, util-linux and a network. Each machine is a root file system of its own, made by mmdebstrap and
entered by unshare with mounts and process ids of its own; steps without a network have no network interface but
loopback. What is committed is tried. pip's and uv's settings count there, too. The authorities of this system are known
to the machine's system only: no variable and no setting of pip names them. Debian 11 has a Python that is too old.

Machines and results are kept in build/fresh, so a run that was interrupted continues with the steps without a result;
--again forgets them. Prints the table, and writes it to docs/fresh-machines.md; exits with 1 if a step failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SUITES: Final = {"bullseye": "Debian 11", "bookworm": "Debian 12", "trixie": "Debian 13"}
TOO_OLD: Final = "bullseye"
"""The suite whose Python is too old."""
PACKAGES: Final = ("make", "python3", "python3-venv", "ca-certificates", "iproute2")
"""iproute2 is for the machine itself: its loopback interface is started without a network, too."""
USER: Final = 1000
HOME: Final = "/home/ada lovelace"
CHECKOUT: Final = f"{HOME}/a checkout"
AUTHORITIES: Final = "etc/ssl/certs/ca-certificates.crt"
PIP_SETTINGS: Final = "etc/pip.conf"
FROM_HOST: Final = ("etc/resolv.conf", PIP_SETTINGS, AUTHORITIES)
SETTINGS: Final = ("PIP_", "UV_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
NOT_SETTINGS: Final = ("PIP_CERT", "PIP_FIND_LINKS", "UV_SYSTEM_CERTS")
"""The first and last name the system's authorities, which the machine has to find. A folder is not in the machine."""
INIT: Final = """\
set -e
mount --rbind /dev "$1/dev"
mount --make-rslave "$1/dev"
mount -t proc proc "$1/proc"
if [ -n "$2" ]; then mkdir -p "$1$2"; mount --bind "$2" "$1$2"; fi
exec chroot "$1" /bin/sh -c 'ip link set lo up 2> /dev/null || true
    umask 077
    cd "$1"
    exec setpriv --reuid "$2" --regid "$2" --clear-groups --no-new-privs /bin/sh -ec "$3"' sh "$3" "$4" "$5"
"""
"""Root file system, interpreter's folder (may be empty), folder, user, command."""


TOO_LONG: Final = 124
FOLDER: Final = ROOT / "build" / "fresh"
PAGE: Final = ROOT / "docs" / "fresh-machines.md"
HEAD: Final = """\
# Fresh machines

Made by `scripts/fresh_machines.py` on {day}, at commit {commit}. Each machine is a minimal Debian of mmdebstrap
(`make`, `python3`, `python3-venv`, `ca-certificates` added), with an ordinary user, spaces in the paths, and umask 077.
The authority that signs for the package index is known to the system only. Python 3.12 is in none of these releases:
`--interpreter DIR` tries one that this machine has.

"""
UP_AND_DOWN: Final = (
    'weft="$PWD/.venv/bin/weft"; cd "{folder}"; "$weft" up --home "/tmp/a home" && '
    '"$weft" status --home "/tmp/a home" && "$weft" down --home "/tmp/a home" --purge --yes'
)
ODD: Final = "../an odd folder"
MAKE_ODD: Final = (
    f'mkdir -p "{ODD}/services" && echo "exit(9)" > "{ODD}/queue.py" && '
    f'echo "exit(9)" > "{ODD}/services/__init__.py" && '
)


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the table on each machine; later steps use what the first ones made."""

    name: str
    what: str
    command: str
    network: bool = True
    refused: str = ""
    """It has to fail, with one line that contains this. Such a step runs on the suite with a Python that is too old."""


HERE: Final = UP_AND_DOWN.format(folder=".")
STEPS: Final = (
    Step("demo", "`make demo`", "make demo"),
    Step("offline", "`make demo` again, without a network", "make demo", network=False),
    Step(
        "odd-folder",
        "`weft up` in a folder with `services/` and `queue.py`",
        MAKE_ODD + UP_AND_DOWN.format(folder=ODD),
    ),
    Step(
        "python-path",
        "`make setup` with PYTHONPATH and PYTHONHOME set",
        f'{MAKE_ODD}PYTHONPATH="{ODD}" PYTHONHOME=/nowhere make setup',
    ),
    Step("no-home", "`make demo` and `weft up` without HOME", f"unset HOME; make demo && {HERE}"),
    Step("root-home", "`make setup` and `weft up` with HOME=/", f"export HOME=/; make setup && {HERE}"),
    Step(
        "fixed-home",
        "`make setup` and `weft up` with a HOME that cannot be written",
        f"export HOME=/proc/self; make setup && {HERE}",
    ),
    Step(
        "next-make",
        "`make setup` with WEFT_PYTHON, then without: the same Python, nothing is done",
        'python3 -m venv "../another python" && export WEFT_PYTHON="$PWD/../another python/bin/python3" && '
        'make setup && unset WEFT_PYTHON && said=$(make setup) && test -z "$said" && grep "another" .venv/.python',
    ),
    Step("too-old", "`make setup` with Python 3.9", "make setup", refused="Weft needs Python 3.11 or newer"),
)


def steps_of(suite: str) -> list[Step]:
    """The steps of a machine."""
    return [step for step in STEPS if bool(step.refused) == (suite == TOO_OLD)]


@dataclass(frozen=True, slots=True)
class Result:
    """How a step ended on a machine."""

    commit: str
    machine: str
    step: str
    python: str
    code: int
    seconds: int


def make_machine(suite: str, root: Path, commit: str) -> None:
    """A minimal Debian with an ordinary user and the files of this commit. Raises CalledProcessError."""
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}", suite, str(root)], check=True
    )
    for name in FROM_HOST:
        if (path := Path("/", name)).exists():
            shutil.copyfile(path, root / name)
    if (pip := root / PIP_SETTINGS).exists():
        kept = [line for line in pip.read_text().splitlines(keepends=True) if line.partition("=")[0].strip() != "cert"]
        pip.write_text("".join(kept))
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n")  # as the installer does
    with (root / "etc/passwd").open("a") as users:
        users.write(f"ada:x:{USER}:{USER}::{HOME}:/bin/sh\n")
    checkout = root / CHECKOUT.removeprefix("/")
    checkout.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(checkout)], input=archive, check=True)
    subprocess.run(["chown", "-R", f"{USER}:{USER}", str(root / HOME.removeprefix("/"))], check=True)


def run_inside(root: Path, command: str, log: Path, *, network: bool, interpreter: str, within_s: float) -> int:
    """Runs the command as the user. Returns its exit code, 124 after the limit; its output is in ``log``."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.upper().startswith(SETTINGS) and name.upper() not in NOT_SETTINGS
    }
    environment: Mapping[str, str] = {
        **kept,
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": HOME,
        "LANG": "C.UTF-8",
        **({"WEFT_PYTHON": f"{interpreter}/bin/python3"} if interpreter else {}),
    }
    separate = ["--mount", "--pid", "--fork", "--kill-child", *([] if network else ["--net"])]
    inside = ["/bin/sh", "-c", INIT, "sh", str(root), interpreter, CHECKOUT, str(USER), command]
    with log.open("wb") as output:
        try:
            return subprocess.run(
                ["unshare", *separate, *inside],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=within_s,
            ).returncode
        except subprocess.TimeoutExpired:
            return TOO_LONG


def try_machine(
    suite: str, steps: Sequence[Step], done: list[Result], *, interpreter: str, commit: str, within_s: float
) -> None:
    """Runs the steps that have no result yet, and adds theirs to ``done`` and to the file of results."""
    machine = f"{SUITES[suite]}{f', {interpreter}' if interpreter else ''}"
    root = FOLDER / f"{suite}{interpreter.replace('/', '-')}"
    had = {result.step for result in done if result.machine == machine}
    if not (root / "made").exists():
        remove(root)
        print(f"{machine}: making a root file system", flush=True)
        make_machine(suite, root, commit)
        (root / "made").touch()
    of_suite = {step.name for step in steps_of(suite)}
    for step in (step for step in steps if step.name in of_suite - had):
        print(f"{machine}: {step.name}: {step.command}", flush=True)
        log, began = FOLDER / f"{root.name}-{step.name}.log", time.monotonic()
        code = run_inside(root, step.command, log, network=step.network, interpreter=interpreter, within_s=within_s)
        lines = log.read_text(errors="replace").splitlines()
        if step.refused:
            code = 0 if code and any(step.refused in line for line in lines) else code or 1
        if code:
            print(f"  exit code {code}; the end of {log}:", *lines[-15:], sep="\n  ")
        python = next((line.partition("ready: ")[2].split(" in ")[0] for line in lines if "ready: Python" in line), "")
        python = python or next((result.python for result in done if result.machine == machine), "")
        done.append(Result(commit, machine, step.name, python, code, round(time.monotonic() - began)))
        (FOLDER / "results.json").write_text(json.dumps([asdict(result) for result in done], indent=1))
    if of_suite <= {result.step for result in done if result.machine == machine}:
        remove(root)


def remove(root: Path) -> None:
    """Removes a folder that may hold machines."""
    # Mounts were made in the machine's own mount namespace, which has ended: this removes files only.
    subprocess.run(["rm", "-rf", "--one-file-system", str(root)], check=True)


def outcome(step: Step, code: int) -> str:
    """How a step ended, for the table."""
    if code:
        return f"exit code {code}"
    return f"refused: {step.refused}" if step.refused else "works"


def table(results: Sequence[Result]) -> str:
    """The table of the results, in Markdown; a step without a result says so."""
    steps = {step.name: step for step in STEPS}
    had = {(result.machine, result.step) for result in results}
    rows = [
        f"| {result.machine} | {result.python} | {steps[result.step].what} "
        f"| {outcome(steps[result.step], result.code)} | {result.seconds} |"
        for result in results
    ]
    rows += [
        f"| {machine} | | {step.what} | no result yet | |"
        for suite, machine in SUITES.items()
        for step in steps_of(suite)
        if (machine, step.name) not in had
    ]
    return "\n".join(["| machine | Python | what was run | result | seconds |", "|---|---|---|---|---|", *rows]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", action="append", choices=SUITES, help="repeatable; by default all")
    parser.add_argument(
        "--step", action="append", choices=[step.name for step in STEPS], help="repeatable; default: all"
    )
    parser.add_argument("--within", type=float, default=1800, metavar="SECONDS", help="time limit of a step (1800)")
    parser.add_argument("--again", action="store_true", help="forget earlier results and machines")
    parser.add_argument(
        "--interpreter", default="", metavar="DIR", help="a Python on this machine, e.g. /opt/python3.12"
    )
    args = parser.parse_args(arguments)
    missing = [program for program in ("mmdebstrap", "unshare", "setpriv", "git") if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        print("this needs root, and mmdebstrap, unshare, setpriv, git; missing:", *missing, file=sys.stderr)
        return 2
    # A terminated run ends its machine's processes, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if args.again:
        remove(FOLDER)
    FOLDER.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    file = FOLDER / "results.json"
    done = [Result(**result) for result in json.loads(file.read_text())] if file.exists() else []
    steps = [step for step in STEPS if not args.step or step.name in args.step]
    for suite in args.suite or SUITES:
        try_machine(suite, steps, done, interpreter=args.interpreter, commit=commit, within_s=args.within)
    order = {step.name: place for place, step in enumerate(STEPS)}
    done.sort(key=lambda result: (result.machine, order[result.step]))
    PAGE.write_text(
        HEAD.format(day=time.strftime("%Y-%m-%d"), commit=", ".join(sorted({r.commit for r in done}))) + table(done)
    )
    print(f"\n{table(done)}")
    return int(any(result.code for result in done))


if __name__ == "__main__":
    sys.exit(main())
