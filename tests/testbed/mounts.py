"""File systems that a test mounts. Needs root."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import eventually


@contextmanager
def small_disk(at: Path, options: str) -> Generator[None]:
    """Mounts an empty file system with root as its owner on a folder, which is made if it does not exist.

    ``options``: of tmpfs, e.g. ``size=1m``.
    """
    at.mkdir(parents=True, exist_ok=True)
    with mounted(["-t", "tmpfs", "-o", f"{options},mode=755", "weft-test"], at):
        yield


@contextmanager
def mounted(arguments: Sequence[str], at: Path) -> Generator[None]:
    """``arguments``: of mount(8). It is unmounted once no process uses it. Raises AssertionError if one still does."""
    subprocess.run(["mount", *arguments, str(at)], check=True)
    try:
        yield
    finally:
        eventually(lambda: subprocess.run(["umount", str(at)], check=False, capture_output=True).returncode == 0)
