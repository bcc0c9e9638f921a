"""Ends live streams whose caller has lost access: the key was revoked, or the session has ended.

A request is authenticated once, and a stream may then live as long as its job. So its caller is checked again beside
its items, in intervals: no item costs a check, and a silent stream ends too.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from services.api.access import Principal
from services.api.sessions import Sessions
from services.core.domain.errors import Unavailable

CHECK_S: Final = 15.0
"""Interval of the checks of each stream. The records of keys and sessions are cached (``key_cache_s``)."""


async def until_access_ends(sessions: Sessions, principal: Principal) -> None:
    """Raises Unauthenticated when the caller's session has ended or their key was revoked. Never returns."""
    while True:
        await asyncio.sleep(CHECK_S)
        with contextlib.suppress(Unavailable):  # the stream goes on while the store is away
            await sessions.check(principal)
