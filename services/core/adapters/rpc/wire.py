"""Constants that client and server share besides the protos.

A module of its own, so that a client (each learner's helper) does not import the server's logging.
"""

from __future__ import annotations

from typing import Final

ERROR_KEY: Final = "weft-error"
"""Trailing metadata: the error's stable code (services.core.domain.errors.TABLE)."""
RETRY_KEY: Final = "weft-retry-after-ms"
TIME_KEY: Final = "weft-time-ms"
"""Trailing metadata of a refused credential: the server's clock in Unix ms, for a caller whose clock is wrong."""
MAX_MESSAGE: Final = 16 * 2**20
