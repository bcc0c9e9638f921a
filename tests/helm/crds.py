"""The definitions of the custom resources that the chart may make (crds.toml), downloaded once for this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from tests.testbed.built import built, cache

_PINS: Final = Path(__file__).with_name("crds.toml")


def definitions() -> list[Path]:
    """Returns their files."""
    return sorted(built("crds", [_PINS], _download).glob("*.yaml"))


def _download(folder: Path) -> None:
    for module in tomllib.loads(_PINS.read_text())["module"]:
        source = _module(f"{module['path']}@{module['version']}", module["sum"])
        for name in module["files"]:
            shutil.copy2(source / name, folder)


def _module(name: str, expected: str) -> Path:
    """The folder of a Go module. Raises RuntimeError if it is not the pinned one."""
    environment = os.environ | {"GOPATH": str(cache() / "go"), "GOFLAGS": "-modcacherw", "GOTOOLCHAIN": "local"}
    done = subprocess.run(
        [Path(sys.executable).with_name("go"), "mod", "download", "-json", name],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env=environment | {"GOWORK": "off"},
    )
    answer: dict[str, Any] = json.loads(done.stdout or "{}")
    if done.returncode or answer.get("Sum") != expected:
        raise RuntimeError(f"{name}: {answer.get('Error') or done.stderr or 'not the module that crds.toml pins'}")
    return Path(answer["Dir"])
