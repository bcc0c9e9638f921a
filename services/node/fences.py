"""The fences of jobs: the highest (attempt, term) of each, durable. Calls with a lower pair are refused.

After a teardown the pair itself is sealed: it makes nothing, so a late call of the Guardian that gave the attempt up
does not bring it back. Another Guardian, of a higher term, may provision the attempt again.

A full disk must not prevent a stop or a teardown, which free its space. Those calls go on with a fence that is only in
memory, and make it durable once there is space.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from services.core.domain.codec import MALFORMED
from services.core.domain.errors import NoSpace, StaleFence
from services.core.runtime.durable_files import read_json, write_json

log = structlog.get_logger()
_KEPT_S: Final = 30 * 86_400
"""Longer than any call can be on its way."""


class _Fence(NamedTuple):
    highest: tuple[int, int]
    sealed: tuple[int, int]


class Fences:
    """One small file per job below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unwritten: dict[str, _Fence] = {}

    def advance(self, job: str, attempt: int, term: int, *, makes: bool = False) -> None:
        """Raises the fence to this pair.

        StaleFence if the fence is higher or, for a call that ``makes`` something, if the pair is sealed. NoSpace for a
        call that makes something; others succeed with a fence that is not durable yet.
        """
        highest, sealed = self._read(job)
        if (attempt, term) < highest or (makes and (attempt, term) <= sealed):
            shown = max(highest, sealed)
            raise StaleFence(
                f"attempt {attempt} of job {job} under term {term} is over (seen: attempt {shown[0]}, term {shown[1]})"
            )
        if (attempt, term) > highest:
            self._unwritten[job] = _Fence((attempt, term), sealed)
        try:
            self.write(job)
        except NoSpace:
            if makes:
                raise

    def seal(self, job: str, attempt: int, term: int) -> None:
        """Nothing of this pair is made any more. Durable at the latest after the next ``write``."""
        highest, sealed = self._read(job)
        if (attempt, term) > sealed:
            self._unwritten[job] = _Fence(highest, (attempt, term))
        with suppress(NoSpace):
            self.write(job)

    def write(self, job: str) -> None:
        """Makes the job's fence durable if it is not. Raises NoSpace."""
        fence = self._unwritten.get(job)
        if fence is not None:
            write_json(self._folder / f"{job}.json", fence._asdict())
            del self._unwritten[job]

    def prune(self, present: set[str]) -> None:
        """Removes the fences of jobs that are not ``present`` and were not called about for 30 days."""
        for path in self._folder.glob("*.json"):
            if path.stem not in present and path.stat().st_mtime < time.time() - _KEPT_S:
                path.unlink()

    def _read(self, job: str) -> _Fence:
        if job in self._unwritten:
            return self._unwritten[job]
        try:
            document = read_json(self._folder / f"{job}.json")
            if document is None:
                return _Fence((0, 0), (0, 0))
            return _Fence(_pair(document.get("highest", (0, 0))), _pair(document.get("sealed", (0, 0))))
        except MALFORMED as error:
            # The next call replaces it. Until then a stale call would pass: better than a job without an end.
            log.error("fence.read_failed", job=job, why=str(error))  # noqa: TRY400 - the message is complete
            return _Fence((0, 0), (0, 0))


def _pair(value: Sequence[Any]) -> tuple[int, int]:
    attempt, term = value
    if not isinstance(attempt, int) or not isinstance(term, int):
        raise TypeError("not two numbers")
    return attempt, term
