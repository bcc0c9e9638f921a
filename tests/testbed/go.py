"""Servers written in Go, built once per machine from pinned modules by the Go in .venv, with a message.

    def server(go_built: GoBuilt) -> ...:
        binary = go_built("toxiproxy", folder)

A folder has go.mod, go.sum and either a main package or ``tool`` lines in go.mod (then there is one); the answer is the
path of the binary, which has the requested name. Go keeps its files in the test bed's cache.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from tests.testbed.built import built, cache, run

GoBuilt = Callable[[str, Path], Path]
SERVERS: Final = Path(__file__).with_name("go-servers")
"""The folder of the pinned modules that several tests use."""
_PINNED: Final = frozenset({".go", ".mod", ".sum"})


def go_build(name: str, folder: Path, say: Callable[[str], None]) -> Path:
    """Returns the binary; builds it if there is none of these pins, which may take some minutes."""
    pins = sorted(path for path in folder.iterdir() if path.suffix in _PINNED)
    return built(name, pins, lambda made: _build(name, folder, made, say)) / name


def _build(name: str, folder: Path, made: Path, say: Callable[[str], None]) -> None:
    say(f"building {name} with Go (once for this machine; up to some minutes)")
    began = time.monotonic()
    for kept in ("go", "go-build"):
        (cache() / kept).mkdir(exist_ok=True)
    # In a copy, because the build writes into its folder.
    source = made / "source"
    shutil.copytree(folder, source)
    main = "." if any(source.glob("*.go")) else "tool"
    settings = {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly -trimpath -modcacherw",
        "GOPATH": cache() / "go",
        "GOCACHE": cache() / "go-build",
        # Only the Go of .venv, and no surrounding workspace.
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    go = Path(sys.executable).with_name("go")
    run(
        "env", f"--chdir={source}", *(f"{key}={value}" for key, value in settings.items()),
        go, "build", "-ldflags=-s -w", "-o", made / name, main,
    )  # fmt: skip
    shutil.rmtree(source)
    say(f"{name} is built: {time.monotonic() - began:.0f} s, {(made / name).stat().st_size / 1e6:.0f} MB")


@pytest.fixture(scope="session")
def go_built(announce: Callable[[str], None], untimed: Callable[[], AbstractContextManager[None]]) -> GoBuilt:
    """Returns ``build(name, folder)``, which returns the binary of a Go server."""

    def build(name: str, folder: Path) -> Path:
        with untimed():
            return go_build(name, folder, announce)

    return build
