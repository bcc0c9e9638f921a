"""Folders inside one another, deeper than any path may be long."""

from __future__ import annotations

import os
from pathlib import Path


def make_deep(top: Path, name: str, depth: int, *, file: str = "") -> int:
    """Makes ``depth`` folders of this name inside one another. ``file``: an empty file in each.

    Returns a descriptor of the deepest, which the caller closes: each is made below the descriptor of the last.
    """
    folder = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=folder)
        below = os.open(name, os.O_RDONLY, dir_fd=folder)
        if file:
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT, dir_fd=below))
        os.close(folder)
        folder = below
    return folder
