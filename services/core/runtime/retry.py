"""Waiting between attempts: the one back-off of the platform.

Pauses double up to a maximum and are jittered, so that a thousand callers do not return at the same moment when a
service comes back.
"""

from __future__ import annotations

import asyncio
import random


class Backoff:
    """Pauses between retries: ``first_s``, doubling up to ``most_s``, each times a random factor in [0.5, 1]."""

    def __init__(self, *, first_s: float = 0.05, most_s: float = 1.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def reset(self) -> None:
        """Starts again at ``first_s``; call it after a success."""
        self._next_s = self._first_s

    def next(self) -> float:
        """Seconds to wait before the next attempt."""
        pause_s, self._next_s = self._next_s, min(self._most_s, self._next_s * 2)
        return pause_s * random.uniform(0.5, 1.0)

    async def wait(self) -> None:
        """Sleeps for ``next()`` seconds."""
        await asyncio.sleep(self.next())
