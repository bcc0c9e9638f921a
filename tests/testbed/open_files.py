"""What this process holds open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def open_files(root: Path) -> list[str]:
    """The folder, and what is below it, that is open. The process closes others meanwhile, of tests before this one."""
    targets: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            targets.append(str(entry.readlink()))
    return sorted(target for target in targets if target == str(root) or target.startswith(f"{root}/"))
