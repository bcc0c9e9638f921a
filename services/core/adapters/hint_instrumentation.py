"""Prometheus counters of hints, shared by all ways of sending them.

The sender counts hints as sent (to the broker, or to the receiving service) or dropped. The worker counts messages from
the broker as delivered, lost (the receiving service was away) or poisoned (the message was no hint).
"""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter

SENT: Final = Counter("weft_hints_sent_total", "Hints sent to the broker, or to the receiving service")
DROPPED: Final = Counter(
    "weft_hints_dropped_total", "Hints lost by the sender: on purpose, or because no receiver answered"
)
DELIVERED: Final = Counter("weft_hints_delivered_total", "Hints that the worker has delivered to their service")
LOST: Final = Counter("weft_hints_lost_total", "Hints that the worker could not deliver to their service")
POISONED: Final = Counter(
    "weft_hints_poisoned_total", "Messages from the broker that are no hints; dropped and logged", ["why"]
)
