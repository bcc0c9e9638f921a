"""The helper's own log: one JSON object per line on stderr, which the agent keeps. Static event names and fields.

Not structlog: its import alone would add an eighth of a second to a learner's start.
"""

from __future__ import annotations

import json
import sys
import time


def log_event(event: str, **fields: object) -> None:
    """Writes one event (``noun.verb_past``). Never raises: a full disk or a closed stderr must not end a helper."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    try:
        sys.stderr.write(json.dumps({"event": event, "timestamp": stamp, **fields}, default=str) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return
