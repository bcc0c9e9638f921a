"""How many hints went, arrived and were lost: the same counters for every way of sending them.

The sender's: sent = handed over to the broker, or to the service they are for. The worker's: what it took from the
broker was delivered, lost (its service was away) or poisoned (no hint at all).
"""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter

SENT: Final = Counter("weft_hints_sent_total", "Hints handed over: to the broker, or to the service they are for")
DROPPED: Final = Counter(
    "weft_hints_dropped_total", "Hints lost on the sender's side: on purpose, or for want of a hearer"
)
DELIVERED: Final = Counter("weft_hints_delivered_total", "Hints that the worker has brought to their service")
LOST: Final = Counter("weft_hints_lost_total", "Hints that the worker could not bring to their service")
POISONED: Final = Counter(
    "weft_hints_poisoned_total", "Messages of the broker that are no hints; dropped, logged, never given back", ["why"]
)
