"""The folder through which a test arms the failpoints of running processes (``services.core.failpoints.points``)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from services.core.failpoints.points import VARIABLE

_CALL = re.compile(r"[a-z]+\.[a-z]+\.[a-z_]+(\(.*\))?")


class FailpointFolder:
    """Give ``environment`` to a platform."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self._folder = folder
        self.environment = {VARIABLE: str(folder)}
        self._read = 0

    def arm(self, when: str, action: str, point: str) -> None:
        """This one happens next, and no other."""
        shutil.rmtree(self._folder / "fired", ignore_errors=True)
        new = self._folder / "armed.new"
        new.write_text(f"{when} {action} {point}\n")
        new.replace(self._folder / "armed")

    def disarm(self) -> None:
        (self._folder / "armed").unlink(missing_ok=True)

    @property
    def fired(self) -> bool:
        """Whether what is armed has happened."""
        return (self._folder / "fired" / "0").exists()

    def passed(self) -> list[str]:
        """The points that were passed since this was asked the last time, each once, in order."""
        with (self._folder / "passed").open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        return list(dict.fromkeys(new.decode().splitlines()))


def ways(point: str) -> Sequence[str]:
    """When something can happen there: for a call before it, after its effect, after its answer."""
    return ("before", "done", "answered") if _CALL.fullmatch(point) else ("before",)
