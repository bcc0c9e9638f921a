"""The highest (attempt, term) seen of each job, durable: what comes with a lower one is of the past and is refused.

After a teardown the pair itself is refused for making anything anew: a late call of the Guardian that gave the attempt
up must not bring it back. Another Guardian, of a higher term, may.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from services.core.domain.errors import StaleFence
from services.node.files import read_json, write_json

_KEPT_S: Final = 30 * 86_400
"""Longer than any call can be on its way."""


class Fences:
    """One small file per job below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def pass_(self, job: str, attempt: int, term: int, *, makes: bool = False) -> None:
        """Raises the fence to this pair, durably; StaleFence where it is higher. ``makes``: and where it is sealed."""
        highest, sealed = self._read(job)
        if (attempt, term) < highest or (makes and (attempt, term) <= sealed):
            shown = max(highest, sealed)
            raise StaleFence(
                f"attempt {attempt} of job {job} under term {term} is over (seen: attempt {shown[0]}, term {shown[1]})"
            )
        if (attempt, term) > highest:
            self._write(job, (attempt, term), sealed)

    def seal(self, job: str, attempt: int, term: int) -> None:
        """Nothing of this pair is made any more."""
        highest, sealed = self._read(job)
        if (attempt, term) > sealed:
            self._write(job, highest, (attempt, term))

    def prune(self, present: set[str]) -> None:
        """Forgets jobs of which nothing exists and nothing was heard for a long time."""
        for path in self._folder.glob("*.json"):
            if path.stem not in present and path.stat().st_mtime < time.time() - _KEPT_S:
                path.unlink()

    def _read(self, job: str) -> tuple[tuple[int, int], tuple[int, int]]:
        document = read_json(self._folder / f"{job}.json") or {}
        attempt, term = document.get("highest", (0, 0))
        sealed_attempt, sealed_term = document.get("sealed", (0, 0))
        return (attempt, term), (sealed_attempt, sealed_term)

    def _write(self, job: str, highest: tuple[int, int], sealed: tuple[int, int]) -> None:
        write_json(self._folder / f"{job}.json", {"highest": highest, "sealed": sealed})
