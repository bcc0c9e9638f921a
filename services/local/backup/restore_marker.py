"""``restoring.json`` in the home: from before the first change of a restore until after its last.

Whatever lies beside it is part of a platform at best, so nothing is started on it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from services.core.adapters.folder import files
from services.core.domain.errors import WeftError
from services.core.runtime.home import Home

_NAME: Final = "restoring.json"


def is_half_restored(home: Home) -> bool:
    """Whether a restore was begun here, and has not ended."""
    return (home / _NAME).exists()


def refuse_half_restored(home: Home) -> None:
    """WeftError where a restore was cut."""
    if not is_half_restored(home):
        return
    try:
        backup = str(json.loads((home / _NAME).read_text())["backup"])
    except (OSError, ValueError, KeyError, TypeError):
        backup = "FILE"
    raise WeftError(f"a restore into {home.root} was cut off; run `weft restore {backup}` again, then start")


def begin(home: Home, document: dict[str, Any]) -> None:
    """Durably."""
    path, beside = home / _NAME, home / f".{_NAME}"
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            files.write_all(descriptor, json.dumps({"schema": 1, **document}).encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        beside.replace(path)
        _sync(home.root)
    except OSError as error:
        raise files.translated(error, str(path)) from None


def end(home: Home) -> None:
    """Durably."""
    (home / _NAME).unlink()
    _sync(home.root)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
