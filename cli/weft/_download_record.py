"""What was downloaded into a folder: the next download replaces those files only, and code archives leave them out.

The record lies in the folder as ``.weft-download``: one JSON object on each line, with path, ETag, size and
modification time of a file. A file's line is appended before the file gets its name, so a download that is killed at
any moment leaves no file that the next one takes for a local one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from weft._errors import Conflict

NAME: Final = ".weft-download"
CODE_ARCHIVE: Final = "code.zip"
"""A job's code, as it is stored and as it is downloaded."""
_SHOWN: Final = 3


class DownloadRecord:
    """The record of one folder, which is read at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries = _read(folder / NAME)

    def has(self, target: Path, etag: str) -> bool:
        """Whether the file is there, whole, with this content, and unchanged since."""
        return any(entry[0] == etag for entry in self._matching(target))

    def place(self, part: Path, target: Path, etag: str) -> None:
        """Gives a whole file its name. Its line is written before: killed in between, a download continues."""
        status = part.stat()
        path = self._path(target)
        entry = (etag, status.st_size, status.st_mtime_ns)
        self._entries.setdefault(path, []).append(entry)
        line = json.dumps({"path": path, "etag": etag, "size": status.st_size, "mtime_ns": status.st_mtime_ns})
        with (self.folder / NAME).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        part.replace(target)

    def check(self, targets: Iterable[Path]) -> None:
        """Raises Conflict where a file is there that was not downloaded, or was changed since."""
        mine = [target for target in targets if target.exists() and not self._matching(target)]
        if mine:
            shown = ", ".join(map(str, mine[:_SHOWN])) + (f" and {len(mine) - _SHOWN} more" if mine[_SHOWN:] else "")
            be = "is" if len(mine) == 1 else "are"
            raise Conflict(f"{shown} {be} there already; name another folder, or give --force to replace local files")

    def _path(self, target: Path) -> str:
        return target.relative_to(self.folder).as_posix()

    def _matching(self, target: Path) -> list[_Entry]:
        """The entries of the file as it is. Several versions of it may have been recorded."""
        return _unchanged(target, self._entries.get(self._path(target), []))


def unchanged_downloads(folder: Path, *, code: bool) -> frozenset[str]:
    """Paths below the folder of the files that were downloaded into it and not changed since.

    code: also files of a job's code. They are recorded with the ETag of the archive that held them.
    """
    entries = _read(folder / NAME)
    archives = {etag for etag, _size, _mtime_ns in entries.get(CODE_ARCHIVE, ())}

    def is_code(path: str, etag: str) -> bool:
        return etag in archives and path != CODE_ARCHIVE

    return frozenset(
        path
        for path, versions in entries.items()
        if any(code or not is_code(path, entry[0]) for entry in _unchanged(folder / path, versions))
    )


def _unchanged(target: Path, entries: list[_Entry]) -> list[_Entry]:
    """Those of the entries that have the size and the modification time of the file."""
    try:
        status = target.stat()
    except (OSError, ValueError):  # ValueError: no file can have this name
        return []
    return [entry for entry in entries if entry[1:] == (status.st_size, status.st_mtime_ns)]


_Entry = tuple[str, int, int]
"""ETag, size in bytes, modification time in nanoseconds."""


def _read(path: Path) -> dict[str, list[_Entry]]:
    """Path -> entries. Lines that cannot be read are left out."""
    entries: dict[str, list[_Entry]] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return {}
    for line in lines:
        try:
            document = json.loads(line)
            entry = (str(document["etag"]), int(document["size"]), int(document["mtime_ns"]))
            entries.setdefault(str(document["path"]), []).append(entry)
        except (ValueError, KeyError, TypeError):
            continue
    return entries
