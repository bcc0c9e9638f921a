"""What was downloaded into a folder: the next download replaces those files only, and no code archive has them.

The record lies in the folder as ``.weft-download``: path -> etag, size and modification time of each file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from weft._errors import Conflict

NAME: Final = ".weft-download"
_SHOWN: Final = 3


class DownloadRecord:
    """The record of one folder. Read at once; call ``write`` at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = _read(folder / NAME)

    def has(self, target: Path, etag: str) -> bool:
        """Whether the file is there, whole, with this content, and unchanged since."""
        entry = self._files.get(self._key(target))
        return entry is not None and entry[0] == etag and self._unchanged(target)

    def add(self, target: Path, etag: str) -> None:
        """Records a file that is whole."""
        status = target.stat()
        self._files[self._key(target)] = [etag, status.st_size, status.st_mtime_ns]

    def check(self, targets: Iterable[Path]) -> None:
        """Raises Conflict where a file is there that was not downloaded, or was changed since."""
        mine = [target for target in targets if target.exists() and not self._unchanged(target)]
        if mine:
            shown = ", ".join(map(str, mine[:_SHOWN])) + (f" and {len(mine) - _SHOWN} more" if mine[_SHOWN:] else "")
            be = "is" if len(mine) == 1 else "are"
            raise Conflict(f"{shown} {be} there already; name another folder, or give --force to replace local files")

    def write(self) -> None:
        """Stores the record, unless it is empty."""
        if self._files:
            (self.folder / NAME).write_text(json.dumps({"files": self._files}, indent=1), encoding="utf-8")

    def _key(self, target: Path) -> str:
        return target.relative_to(self.folder).as_posix()

    def _unchanged(self, target: Path) -> bool:
        entry = self._files.get(self._key(target))
        try:
            status = target.stat()
        except OSError:
            return False
        return entry is not None and entry[1:] == [status.st_size, status.st_mtime_ns]


def downloaded(folder: Path) -> frozenset[str]:
    """Paths below the folder of the files that were downloaded into it."""
    return frozenset(_read(folder / NAME))


def _read(path: Path) -> dict[str, list[object]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): list(entry) for name, entry in document["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
