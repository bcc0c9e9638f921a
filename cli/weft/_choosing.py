"""Which of a job's files a download takes, and where in the target folder each goes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from weft._download_record import CODE_ARCHIVE
from weft._errors import Internal
from weft._records import Artifact

KINDS: Final = ("results", "logs", "checkpoints", "code")
_NAME_BYTES: Final = 255
"""The longest name that a folder takes, in bytes."""
_PART_BYTES: Final = 200
"""Of a longer name; also of the name of a file that is not complete yet, to which something is added."""


def choose(listed: Sequence[Artifact], what: str) -> list[tuple[str, Artifact]]:
    """The artifacts to fetch, each with its path below the target folder."""
    if what == "code":
        return [(CODE_ARCHIVE, artifact) for artifact in listed if artifact.path == CODE_ARCHIVE]
    by_attempt: dict[int, list[tuple[str, Artifact]]] = {}
    for artifact in listed:
        parts = artifact.path.split("/", 3)
        if len(parts) == 4 and parts[0] == "attempts" and parts[1].isdigit() and parts[2] == what:
            by_attempt.setdefault(int(parts[1]), []).append((_named(parts[3], what, artifact.learner), artifact))
    return by_attempt[max(by_attempt)] if by_attempt else []


def _named(path: str, what: str, learner: str) -> str:
    """The path below the target folder. Folders of logs are numbered where they are stored; here each has the name
    of its learner, as folders of results do.
    """
    _folder, _, rest = path.partition("/")
    return f"{learner}/{rest}" if what == "logs" and learner and rest else path


def inside(folder: Path, name: str) -> Path:
    """Where a file goes. The platform's word is not taken for it: nothing is written outside the folder.

    A learner may give its files names that no folder here takes, and one of them must not keep the others from being
    fetched: a name that is too long is cut and ends with its hash, and a backslash is written %5C where it separates
    folders.
    """
    if os.sep == "\\":
        name = name.replace("\\", "%5C")
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise Internal(f"the platform lists a file with a path that leads outside: {name!r}")
    return folder.joinpath(*map(_fitting, parts))


def part_file(target: Path, etag: str) -> Path:
    """The hidden file that a download of ``target`` is written to first. ``etag``: of the content."""
    version = hashlib.sha256(etag.encode()).hexdigest()[:12]
    return target.with_name(f".{_cut(target.name, _PART_BYTES)}.{version}.weft-part")


def _fitting(part: str) -> str:
    if len(part.encode()) <= _NAME_BYTES:
        return part
    return f"{_cut(part, _PART_BYTES)}.{hashlib.sha256(part.encode()).hexdigest()[:12]}"


def _cut(text: str, size: int) -> str:
    """The longest beginning with at most ``size`` bytes."""
    return text.encode()[:size].decode(errors="ignore")
