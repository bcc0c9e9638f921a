"""How many hints went and how many were lost: the same two counters for every way of sending them."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter

SENT: Final = Counter("weft_hints_sent_total", "Hints handed over: to the broker, or to the service they are for")
DROPPED: Final = Counter(
    "weft_hints_dropped_total", "Hints lost on the sender's side: on purpose, or for want of a hearer"
)
