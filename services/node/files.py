"""Removal of a learner's folder, also if the learner has closed folders in it."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def remove_tree(path: Path) -> None:
    """Removes the folder with all its contents, also below folders that their owner has closed. Follows no link.

    Raises OSError if something stays.
    """
    if os.geteuid() != 0:
        for folder, _, _ in os.walk(path):  # top-down: a closed folder is opened before the walk enters it
            _open_folder(folder)
            for entry in _folders_in(folder):
                _open_folder(entry)
    shutil.rmtree(path, ignore_errors=False)


def _open_folder(folder: str) -> None:
    with suppress(OSError):
        Path(folder).chmod(0o700)


def _folders_in(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
