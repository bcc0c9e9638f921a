"""Clock jumps of single services while they run, by Debian's libfaketime; the machine's clock stays.

Only what tells the time of day jumps. Clocks that measure durations stay as they are, as on a machine whose
administrator sets its clock.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.testbed.built import need_debian

SERVICES: Final = ("api", "lcm", "guardian", "metrics", "node")
TAKES_S: Final = 1.0
"""Interval in seconds at which a process reads its file."""
_HOOK: Final = Path(__file__).with_name("clocks")


class Clocks:
    """``environment`` is for the platform; ``jump`` then moves the clock of one service."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._folder = folder
        self._library = library
        folder.mkdir()
        for service in SERVICES:
            self.jump(service, 0)

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "PYTHONPATH": str(_HOOK),
            "WEFT_TEST_CLOCKS": str(self._folder),
            "WEFT_TEST_CLOCKS_LIBRARY": str(self._library),
        }

    def jump(self, service: str, seconds: int) -> None:
        """Sets the service's clock ``seconds`` ahead of the machine's (negative: behind)."""
        new = self._folder / ".new"
        new.write_text(f"{seconds:+d}\n")
        new.rename(self._folder / service)


def faketime_library(say: Callable[[str], None]) -> Path:
    """Returns the path of libfaketime; installs it if needed. Raises RuntimeError if it cannot."""
    need_debian(("faketime",), ("faketime",), say)
    listed = subprocess.run(["dpkg", "-L", "libfaketime"], capture_output=True, text=True, check=True).stdout
    # The one for programs with threads.
    return next(Path(line) for line in listed.splitlines() if line.endswith("libfaketimeMT.so.1"))
