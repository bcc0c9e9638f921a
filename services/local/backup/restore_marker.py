"""``restoring.json`` in the home: exists from before the first change of a restore until after its last.

While it exists the home holds a part of a platform at best, so nothing is started on it.
"""

from __future__ import annotations

import json
import shlex
from typing import Any, Final

from services.core.adapters.folder import files
from services.core.domain.codec import MALFORMED
from services.core.domain.errors import WeftError
from services.core.runtime.durable_files import sync_folder, write_json
from services.core.runtime.home import Home

_NAME: Final = "restoring.json"


def is_half_restored(home: Home) -> bool:
    """True if a restore was begun here and has not ended."""
    return (home / _NAME).exists()


def refuse_half_restored(home: Home) -> None:
    """Raises WeftError, with what to do, if a restore was interrupted here."""
    if not is_half_restored(home):
        return
    try:
        backup = str(json.loads((home / _NAME).read_text())["backup"])
    except (OSError, *MALFORMED):
        backup = "FILE"
    again = home.command(f"restore {shlex.quote(backup)}")
    raise WeftError(f"a restore into {home.root} was cut off; run `{again}` again, then start")


def begin(home: Home, document: dict[str, Any]) -> None:
    """Creates the marker, durably."""
    path = home / _NAME
    try:
        write_json(path, document)
    except OSError as error:
        raise files.translated(error, str(path)) from None


def end(home: Home) -> None:
    """Removes the marker, durably."""
    (home / _NAME).unlink()
    sync_folder(home.root)
