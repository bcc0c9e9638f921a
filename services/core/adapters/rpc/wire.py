"""What client and server agree on besides the protos.

By itself, so that a client (every learner's helper is one) does not pay for importing the server's logging.
"""

from __future__ import annotations

from typing import Final

ERROR_KEY: Final = "weft-error"
"""Trailing metadata: the error's stable code (services.core.domain.errors.TABLE)."""
RETRY_KEY: Final = "weft-retry-after-ms"
MAX_MESSAGE: Final = 16 * 2**20
