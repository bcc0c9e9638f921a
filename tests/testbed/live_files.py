"""Files in folders that a running platform makes and removes meanwhile."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path


def live_files(folder: Path) -> Iterator[Path]:
    """The files below a folder. ``Path.rglob`` raises if a folder is removed meanwhile."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if path.is_file():
                yield path


def files_with(folder: Path, words: Collection[bytes]) -> list[Path]:
    """The files below a folder that contain one of the words."""
    containing: list[Path] = []
    for path in live_files(folder):
        with suppress(FileNotFoundError):
            content = path.read_bytes()
            if any(word in content for word in words):
                containing.append(path)
    return containing
