"""How the commands end that the chart's hooks run (helm/weft): ``cluster_keys`` and ``upgrade_check``."""

from __future__ import annotations

import sys
from typing import Final

from services.core.domain.errors import Conflict, WeftError

REFUSED: Final = 2
"""Exit code: another run has the same result. The chart's jobs end with it at once (podFailurePolicy)."""
_FAILED: Final = 1
"""Exit code: another run may succeed."""


def fail(command: str, error: WeftError | OSError) -> int:
    """Writes the error to standard error. Returns the exit code."""
    sys.stderr.write(f"{command}: {error}\n")
    return REFUSED if isinstance(error, Conflict) else _FAILED
