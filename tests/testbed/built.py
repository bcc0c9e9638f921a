"""What the test bed builds once: outside the tree, under the hash of what it is made from, whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path


def cache() -> Path:
    """Where the test bed keeps what it built."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "weft-testbed"


def built(name: str, pins: Sequence[Path], build: Callable[[Path], None]) -> Path:
    """The folder that ``build`` filled from these files; built now if it is not there yet.

    Who comes while another builds waits for it. A build that fails leaves nothing.
    """
    digest = hashlib.sha256()
    for pin in pins:
        digest.update(pin.name.encode() + b"\0" + pin.read_bytes() + b"\0")
    place = cache() / digest.hexdigest()[:16] / name
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            unfinished = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{name}-"))
            try:
                build(unfinished)
                unfinished.rename(place)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return place


def run(*command: str | Path) -> None:
    """Runs one step of a build; RuntimeError with what it said where it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def need_debian(programs: Sequence[str], packages: Sequence[str], say: Callable[[str], None]) -> None:
    """Installs Debian packages where a program is missing; as root only, and aloud. Else says what to do."""
    missing = [program for program in programs if shutil.which(program) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise RuntimeError(f"no {', '.join(missing)} here; install it, e.g. sudo apt-get install {' '.join(packages)}")
    say(f"installing Debian packages: {' '.join(packages)}")
    run("apt-get", "update", "-q")
    run("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-qy", "--no-install-recommends", *packages)
