"""The jobs that a watch has news of. A burst of changes of one job is named with its first, and once after it.

While a pod starts, the API server changes it several times within a second, and the reader answers each job that it is
named by reading the job's objects.
"""

from __future__ import annotations

import asyncio
from typing import Final

_PAUSE_S: Final = 0.25
"""A job is not named again for so long."""
_ALL: Final = ""
"""Any job may have changed."""


class Changes:
    """For one reader, in its event loop."""

    def __init__(self) -> None:
        self._named: asyncio.Queue[str] = asyncio.Queue()
        self._changed: dict[str, bool] = {}
        """By job that was named within the last ``_PAUSE_S``: whether it has changed since."""

    def add(self, job: str) -> None:
        """``job``: an id, or "" for all."""
        if job in self._changed:
            self._changed[job] = True
            return
        self._named.put_nowait(job)
        if job != _ALL:
            self._changed[job] = False
            asyncio.get_running_loop().call_later(_PAUSE_S, self._end_pause, job)

    async def next(self) -> str:
        """Waits for a job that has changed."""
        return await self._named.get()

    def _end_pause(self, job: str) -> None:
        if self._changed.pop(job):
            self.add(job)
