"""Work that waits for the disk, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def to_thread(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """What ``work`` gives."""
    return await asyncio.to_thread(work, *args, **named)
