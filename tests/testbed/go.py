"""Servers written in Go, built once per machine from pinned modules by the Go in .venv, with a message.

    def server(go_built: GoBuilt) -> ...:
        binary = go_built("toxiproxy", folder)

A folder has go.mod, go.sum and either a main package or ``tool`` lines in go.mod (one, or several for
``go_programs``). A file build.toml may set ``flags`` (arguments of ``go build``) and ``cgo``. Go keeps its files in the
test bed's cache: modules for good, compiled packages until all programs are built (``remove_compiled``).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.testbed.built import built, cache

GoBuilt = Callable[[str, Path], Path]
Say = Callable[[str], None]
SERVERS: Final = Path(__file__).with_name("go-servers")
"""The folder of the pinned modules that several tests use."""
_PINNED: Final = frozenset({".go", ".mod", ".sum", ".toml"})
_SAY_EVERY_S: Final = 20.0
_COMPILED: Final = "go-build"


def go_build(name: str, folder: Path, say: Say) -> Path:
    """Returns the binary; builds it if there is none of these pins, which may take some minutes."""
    return built(name, _pins(folder), lambda made: _build(name, folder, made / name, say)) / name


def go_programs(name: str, folder: Path, say: Say) -> Path:
    """Returns the folder of the binaries of all ``tool`` lines, by their names. Otherwise as ``go_build``."""

    def build(made: Path) -> None:
        (made / "bin").mkdir()
        _build(name, folder, made / "bin", say)

    return built(name, _pins(folder), build) / "bin"


def remove_compiled() -> None:
    """Removes compiled packages, several GB that only further builds would use. Does nothing while one runs."""
    with suppress(BlockingIOError), compiled_packages(fcntl.LOCK_EX | fcntl.LOCK_NB):
        shutil.rmtree(cache() / _COMPILED, ignore_errors=True)


@contextmanager
def compiled_packages(how: int = fcntl.LOCK_SH) -> Generator[None]:
    """Nobody removes them within the block. Raises BlockingIOError if ``how`` says not to wait."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{_COMPILED}.lock").open("w") as lock:
        fcntl.flock(lock, how)
        yield


def _pins(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in _PINNED)


def _build(name: str, folder: Path, target: Path, say: Say) -> None:
    """``target``: the binary, or an existing folder for several."""
    say(f"building {name} with Go (once for this machine; up to some minutes)")
    began = time.monotonic()
    # In a copy, because the build writes into its folder.
    source = target.parent / "source"
    shutil.copytree(folder, source)
    options = tomllib.loads((source / "build.toml").read_text()) if (source / "build.toml").exists() else {}
    environment = os.environ | {
        "CGO_ENABLED": "1" if options.get("cgo") else "0",
        "GOFLAGS": "-mod=readonly -trimpath -modcacherw",
        "GOPATH": str(cache() / "go"),
        "GOCACHE": str(cache() / _COMPILED),
        # Only the Go of .venv, and no surrounding workspace.
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    go = str(Path(sys.executable).with_name("go"))
    main = "." if any(source.glob("*.go")) else "tool"
    flags = ["-ldflags=-s -w", *options.get("flags", ())]
    # The names of the packages, as they are compiled, show how far it has got.
    with (
        compiled_packages(),
        subprocess.Popen(
            [go, "build", "-v", *flags, "-o", target, main],
            cwd=source,
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process,
    ):
        output = _follow(process, name, say)
    if process.returncode:
        raise RuntimeError(f"go build of {name} failed:\n{output[-4000:]}")
    shutil.rmtree(source)
    size = sum(path.stat().st_size for path in (target.iterdir() if target.is_dir() else [target]))
    say(f"{name} is built: {time.monotonic() - began:.0f} s, {size / 1e6:.0f} MB")


def _follow(process: subprocess.Popen[str], name: str, say: Say) -> str:
    """Reads all output; says now and then how many packages are compiled."""
    assert process.stderr is not None
    lines: list[str] = []
    compiled, reported = 0, time.monotonic()
    for line in process.stderr:
        lines.append(line)
        compiled += not line.startswith("go: ")
        if time.monotonic() - reported > _SAY_EVERY_S:
            reported = time.monotonic()
            say(f"{name}: {compiled:,} packages compiled" if compiled else f"{name}: downloading modules")
    return "".join(lines)


@pytest.fixture(scope="session")
def go_built(announce: Say, untimed: Callable[[], AbstractContextManager[None]]) -> GoBuilt:
    """Returns ``build(name, folder)``, which returns the binary of a Go server."""

    def build(name: str, folder: Path) -> Path:
        with untimed():
            return go_build(name, folder, announce)

    return build
