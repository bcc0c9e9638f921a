"""What processes hold open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def open_files(root: Path) -> list[str]:
    """The folder, and what is below it, that is open. The process closes others meanwhile, of tests before this one."""
    return sorted(target for target in _targets("self") if target == str(root) or target.startswith(f"{root}/"))


def open_sockets(pid: int | str = "self") -> set[str]:
    """The inodes of the process's sockets."""
    sockets = (target for target in _targets(pid) if target.startswith("socket:["))
    return {target.removeprefix("socket:[").removesuffix("]") for target in sockets}


def _targets(pid: int | str) -> list[str]:
    targets: list[str] = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            targets.append(str(entry.readlink()))
    return targets
