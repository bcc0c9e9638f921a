"""The folder through which a test arms the failpoints of running processes (``services.core.failpoints.points``)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from services.core.failpoints.points import VARIABLE

_CALL = re.compile(r"[a-z]+\.[a-z]+\.[a-z_]+(\(.*\))?")


class FailpointFolder:
    """``environment`` is for the platform under test."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self._folder = folder
        self.environment = {VARIABLE: str(folder)}
        self._read = 0

    def arm(self, when: str, action: str, point: str) -> None:
        """Arms this point and disarms all others."""
        shutil.rmtree(self._folder / "fired", ignore_errors=True)
        new = self._folder / "armed.new"
        new.write_text(f"{when} {action} {point}\n")
        new.replace(self._folder / "armed")

    def disarm(self) -> None:
        (self._folder / "armed").unlink(missing_ok=True)

    @property
    def fired(self) -> bool:
        """True if the armed point has fired."""
        return (self._folder / "fired" / "0").exists()

    def passed(self) -> list[str]:
        """Returns the points passed since the last call of this method, each once, in order."""
        with (self._folder / "passed").open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        return list(dict.fromkeys(new.decode().splitlines()))


def ways(point: str) -> Sequence[str]:
    """Returns when the point can fire: for a call before it, after its effect, after its answer."""
    return ("before", "done", "answered") if _CALL.fullmatch(point) else ("before",)
