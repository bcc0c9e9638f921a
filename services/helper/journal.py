"""The helper's own log: one JSON object per line on stderr, which the agent keeps. Static event names and fields.

Not structlog, whose import alone would cost a learner's start an eighth of a second.
"""

from __future__ import annotations

import json
import sys
import time


def note(event: str, **fields: object) -> None:
    """Never raises: a full disk or a closed stderr must not end a helper."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    try:
        sys.stderr.write(json.dumps({"event": event, "timestamp": stamp, **fields}, default=str) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return
