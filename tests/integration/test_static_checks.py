"""Lint, types and layers of the whole tree. `make check` runs all of them but pyright, which takes a minute."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed.built import cache

ROOT = Path(__file__).parents[2]
CHECKS = {
    "format": ("ruff", "format", "--check", "--output-format", "concise", "."),
    "lint": ("ruff", "check", "--output-format", "concise", "."),
    "layers": ("lint-imports", "--no-logo"),
    "mypy": ("mypy",),
    "pyright": ("pyright",),
}


@pytest.mark.slow
@pytest.mark.timeout(3600)  # they only compute: pyright takes two minutes of a processor, of which others use most
@pytest.mark.parametrize("command", CHECKS.values(), ids=CHECKS)
def test_the_tree_passes(command: tuple[str, ...]) -> None:
    program = Path(sys.executable).with_name(command[0])
    done = subprocess.run(
        [program, *command[1:]],
        cwd=ROOT,
        env={
            **os.environ,
            # pyright says when a newer version is out. The lock file decides which one runs.
            "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
            # mypy reads by content what has not changed: a new checkout need not be read whole again.
            "MYPY_CACHE_DIR": str(cache() / "mypy"),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8_000:]
