"""Long work on the event loop that lets other requests run in between."""

from __future__ import annotations

import asyncio
import time
from typing import Final

_LONGEST_S: Final = 0.005


class Turns:
    """For one loop over many objects. Work on a single object must be short."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    async def let_others_run(self) -> None:
        """Runs what else is ready if the loop had no pause for five milliseconds. Call it for each object."""
        if time.monotonic() - self._began >= _LONGEST_S:
            await asyncio.sleep(0)
            self._began = time.monotonic()
