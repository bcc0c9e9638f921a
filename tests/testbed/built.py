"""Builds of the test bed: made once, outside the tree, under the hash of their sources, complete or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

_APT_GET: Final = Path(__file__).parents[2] / "scripts" / "apt-get.sh"
_LEAN: Final = "--no-install-recommends"
_POLICY: Final = "#!/bin/sh\n# of the test bed of Weft, while it installs packages\nexit 101\n"
"""As in scripts/test-packages.sh."""
_timed = pytest.StashKey[tuple[pytest.Item, Any]]()


def cache() -> Path:
    """Returns the folder of all builds."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "weft-testbed"


def built(name: str, pins: Sequence[Path], build: Callable[[Path], None]) -> Path:
    """Returns the folder that ``build`` filled from these files; builds it if needed.

    A concurrent caller waits for the build. A failed build leaves nothing behind; the rest of one that was killed is
    removed by the next.
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
            for left in place.parent.glob(f".{name}-{'[a-z0-9_]' * 8}"):  # of a build that was killed
                shutil.rmtree(left, ignore_errors=True)
            unfinished = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{name}-"))
            try:
                build(unfinished)
                unfinished.rename(place)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return place


def run(*command: str | Path) -> None:
    """Runs one step of a build. Raises RuntimeError with its output if it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def need_debian(programs: Sequence[str], packages: Sequence[str], say: Callable[[str], None]) -> None:
    """Installs Debian packages if a program is missing; as root only, with a message. Otherwise says what to do."""
    missing = _missing(programs)
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise RuntimeError(f"no {', '.join(missing)} here; install it, e.g. sudo apt-get install {' '.join(packages)}")
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "debian.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _missing(programs):
            return
        say(f"installing Debian packages: {' '.join(packages)}")
        run(_APT_GET, "update", "-q")
        with no_service_starts():
            run("env", "DEBIAN_FRONTEND=noninteractive", _APT_GET, "install", "-qy", _LEAN, *packages)


def _missing(programs: Sequence[str]) -> list[str]:
    return [program for program in programs if shutil.which(program) is None]


@contextmanager
def no_service_starts(policy: Path = Path("/usr/sbin/policy-rc.d")) -> Generator[None]:
    """Keeps packages from starting their services. A policy that the machine already has stays.

    The caller holds debian.lock, as scripts/test-packages.sh does: another installation would take this policy for the
    machine's, and go on without it once it is removed. One that a killed installation has left is known by its text.
    """
    if policy.exists() and policy.read_text() != _POLICY:
        yield
        return
    policy.write_text(_POLICY)
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def announce(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Returns a function that prints a message past pytest's capture, before long steps."""

    def say(what: str) -> None:
        capture: Any = pytestconfig.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            sys.stderr.write(f"\ntest bed: {what}\n")
            sys.stderr.flush()

    return say


@pytest.fixture(scope="session")
def untimed(pytestconfig: pytest.Config) -> Callable[[], AbstractContextManager[None]]:
    """Returns a context whose time does not count towards the timeout of the current test."""

    @contextmanager
    def stopped() -> Generator[None]:
        item, settings = pytestconfig.stash.get(_timed, (None, None))
        if item is None:
            yield
            return
        pytestconfig.hook.pytest_timeout_cancel_timer(item=item)
        try:
            yield
        finally:
            pytestconfig.hook.pytest_timeout_set_timer(item=item, settings=settings)

    return stopped


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    item.config.stash[_timed] = item, settings


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    """After a test has ended its timer must not be set again: nothing would cancel it, and it ends the whole run."""
    if _timed in item.config.stash:
        del item.config.stash[_timed]
