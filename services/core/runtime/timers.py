"""Timers of a process that fire together.

While a training uses all processors, they have forgotten a service's code and data whenever it wakes up. So a wake-up
costs more than most of what a periodic task does in it. Periodic tasks therefore wait until the same moments: the
multiples of ``GRID_S`` on the clock of the event loop. The first pause is shorter by up to ``GRID_S``. The others
are exact where they are whole seconds, else shorter as well.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final

GRID_S: Final = 1.0
"""Shorter pauses are left as they are: they are back-offs, or somebody waits."""
_EARLY_S: Final = 0.01
"""An event loop may wake up so much before a timer: the next pause must not end at this moment once more."""


def aligned(deadline_s: float, *, phase_s: float = 0.0) -> float:
    """Returns the last of the moments that is not later than ``deadline_s``.

    ``phase_s``: by so much the moments are moved, so that many processes of a machine do not wake up at once.
    """
    return math.floor((deadline_s - phase_s + _EARLY_S) / GRID_S) * GRID_S + phase_s


def aligned_pause(seconds: float, *, phase_s: float = 0.0) -> float:
    """Returns the seconds from now to a moment that is not later; ``seconds`` itself if it is less than one second."""
    if seconds < GRID_S:
        return seconds
    now_s = asyncio.get_running_loop().time()
    return aligned(now_s + seconds, phase_s=phase_s) - now_s
