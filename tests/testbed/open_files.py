"""What this process holds open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def open_files(root: Path) -> list[str]:
    """The folder, and what is below it, that is open. The process closes others meanwhile, of tests before this one."""
    return sorted(target for target in _targets() if target == str(root) or target.startswith(f"{root}/"))


def open_sockets() -> set[str]:
    """Each as the kernel names it."""
    return {target for target in _targets() if target.startswith("socket:")}


def _targets() -> list[str]:
    targets: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            targets.append(str(entry.readlink()))
    return targets
