"""What this process cannot read, and therefore leaves alone: one bad object harms itself only (architecture.md, law 5).

One notion for all: what kind of thing it is, where it lies, why it cannot be read, since when we know, and what would
help. It is level, not edge: whoever looks at a thing says each time how it found it, so what was mended leaves by
itself and nothing has to be released by hand. It is kept in memory: after a restart the next look finds it again.

Operators see it as ``weft_quarantined{kind=...}``, in `weft status`, `weft doctor` and ``GET /v1/quarantine``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Gauge

JOB, STATUS, LEARNER, METRICS, RECORD, SPOOL = "job", "status", "learner", "metrics", "record", "spool"
ADVICE: Final = {
    JOB: "mend its document in the job store, or restore it from a backup; it goes on by itself then",
    STATUS: "nothing to do: it is written anew, or removed once its job is over",
    LEARNER: "`weft kill` its job; what it had stored stays",
    METRICS: "its job goes on without stored lines and points; restore its folder below metrics/ from a backup",
    RECORD: "restore it from a backup, or make it anew (a key: POST /v1/keys)",
    SPOOL: "nothing to do: what could be read of it was taken, the rest counts as lost",
}
"""Kind -> what to do about it, where its finder knows nothing better."""
_MOST: Final = 10_000
_REASON: Final = 500
log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineEntry:
    """One thing that cannot be read."""

    kind: str
    place: str
    """Where it lies: a job's id, a key in etcd, a path."""
    reason: str
    since: int
    """Unix ms: when this process first saw it so."""
    job: str = ""
    """The job that is harmed; empty: none, or nobody knows."""
    advice: str = ""


class Quarantine:
    """One per process. Not more than 10,000 things are kept; when these are mended the next look finds the rest."""

    def __init__(self, now_ms: Callable[[], int], registry: CollectorRegistry) -> None:
        self._now_ms = now_ms
        self._held: dict[tuple[str, str], QuarantineEntry] = {}
        self._gauge = Gauge(
            "weft_quarantined", "Things that cannot be read and are left alone.", ("kind",), registry=registry
        )
        self._counts: Counter[str] = Counter()

    def hold(self, kind: str, place: str, reason: str, *, job: str = "", advice: str = "") -> None:
        """It cannot be read, for this reason; said before: the time stays, the reason is the newer one."""
        key, reason = (kind, place), reason[:_REASON]
        known = self._held.get(key)
        if known is not None:
            self._held[key] = replace(known, reason=reason, job=job, advice=advice or ADVICE[kind])
            return
        if len(self._held) >= _MOST:
            return
        log.error("quarantine.held", kind=kind, place=place, why=reason, job=job)
        self._held[key] = QuarantineEntry(
            kind=kind, place=place, reason=reason, since=self._now_ms(), job=job, advice=advice or ADVICE[kind]
        )
        self._counted(kind, 1)

    def release(self, kind: str, place: str) -> None:
        """It can be read, or is gone. Nothing happens where it was not held."""
        if self._held.pop((kind, place), None) is not None:
            log.info("quarantine.released", kind=kind, place=place)
            self._counted(kind, -1)

    def keep_only(self, kind: str, places: Collection[str]) -> None:
        """Releases all of the kind that are not among these."""
        for place in self.places(kind):
            if place not in places:
                self.release(kind, place)

    def move_to_end(self, kind: str, place: str) -> None:
        """It was looked at: others are first in ``places`` now."""
        held = self._held.pop((kind, place), None)
        if held is not None:
            self._held[kind, place] = held

    def places(self, kind: str) -> Sequence[str]:
        """Of all that is held of the kind, the one that waits longest first."""
        return [place for its, place in self._held if its == kind]

    def entries(self) -> Sequence[QuarantineEntry]:
        """Everything that is held, by kind and place."""
        return [self._held[key] for key in sorted(self._held)]

    def _counted(self, kind: str, change: int) -> None:
        self._counts[kind] += change
        self._gauge.labels(kind).set(self._counts[kind])
