"""Which of a job's files a download takes, and where in the target folder each goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from weft._errors import Internal
from weft._records import Artifact

KINDS: Final = ("results", "logs", "checkpoints", "code")


def choose(listed: Sequence[Artifact], what: str) -> list[tuple[str, Artifact]]:
    """The artifacts to fetch, each with its path below the target folder."""
    if what == "code":
        return [("code.zip", artifact) for artifact in listed if artifact.path == "code.zip"]
    by_attempt: dict[int, list[tuple[str, Artifact]]] = {}
    for artifact in listed:
        parts = artifact.path.split("/", 3)
        if len(parts) == 4 and parts[0] == "attempts" and parts[1].isdigit() and parts[2] == what:
            by_attempt.setdefault(int(parts[1]), []).append((parts[3], artifact))
    return by_attempt[max(by_attempt)] if by_attempt else []


def inside(folder: Path, name: str) -> Path:
    """Where a file goes. The platform's word is not taken for it: nothing is written outside the folder."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise Internal(f"the platform lists a file with a path that leads outside: {name!r}")
    return folder.joinpath(*parts)
