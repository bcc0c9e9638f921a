"""The list of objects that this process cannot read and leaves alone (architecture.md, law 5).

An entry has the object's kind and place, the reason, since when it is known, and an advice. Each scan of the objects
reports every one as unreadable (``hold``) or readable (``release``), so a repaired object leaves the list by itself.
The list is in memory; after a restart the next scan fills it again.

Operators see it as ``weft_quarantined{kind=...}``, in `weft status`, `weft doctor` and ``GET /v1/quarantine``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Gauge

JOB, STATUS, LEARNER, METRICS, RECORD = "job", "status", "learner", "metrics", "record"
FOLDER: Final = "folder"
ADVICE: Final = {
    JOB: "repair its document in the job store, or restore it from a backup; the job continues by itself then",
    STATUS: "nothing to do: it is written again, or removed when its job has ended",
    LEARNER: "`weft kill` its job; what the learner has stored remains",
    METRICS: "its job continues without stored lines and points; restore its folder below metrics/ from a backup",
    RECORD: "restore it from a backup, or create it again (a key: POST /v1/keys)",
    FOLDER: "unmount what is mounted in it (findmnt), or remove it by hand; the node agent tries again by itself",
}
"""Kind -> the default advice."""
_MAX_ENTRIES: Final = 10_000
_MAX_REASON: Final = 500
"""Characters."""
log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineEntry:
    """One object that cannot be read."""

    kind: str
    place: str
    """A job's id, a key in etcd, or a path."""
    reason: str
    since: int
    """Unix ms of the first ``hold``."""
    job: str = ""
    """The job that is affected; empty: none, or unknown."""
    advice: str = ""
    """What the operator can do."""


class Quarantine:
    """The list of one process: at most 10,000 entries. Further objects are added by a later scan, when some left."""

    def __init__(self, now_ms: Callable[[], int], registry: CollectorRegistry) -> None:
        self._now_ms = now_ms
        self._entries: dict[tuple[str, str], QuarantineEntry] = {}
        self._gauge = Gauge(
            "weft_quarantined", "Objects that cannot be read and are left alone.", ("kind",), registry=registry
        )
        self._counts: Counter[str] = Counter()

    def hold(self, kind: str, place: str, reason: str, *, job: str = "", advice: str = "") -> None:
        """Adds an object, or updates its reason, job and advice. ``since`` of an entry stays."""
        key, reason = (kind, place), reason[:_MAX_REASON]
        entry = self._entries.get(key)
        if entry is not None:
            self._entries[key] = replace(entry, reason=reason, job=job, advice=advice or ADVICE[kind])
            return
        if len(self._entries) >= _MAX_ENTRIES:
            return
        log.error("quarantine.held", kind=kind, place=place, why=reason, job=job)
        self._entries[key] = QuarantineEntry(
            kind=kind, place=place, reason=reason, since=self._now_ms(), job=job, advice=advice or ADVICE[kind]
        )
        self._count(kind, 1)

    def release(self, kind: str, place: str) -> None:
        """Removes an object that can be read, or no longer exists. No effect where it is not in the list."""
        if self._entries.pop((kind, place), None) is not None:
            log.info("quarantine.released", kind=kind, place=place)
            self._count(kind, -1)

    def keep_only(self, kind: str, places: Collection[str]) -> None:
        """Releases all objects of the kind whose place is not in ``places``."""
        for place in self.places(kind):
            if place not in places:
                self.release(kind, place)

    def move_to_end(self, kind: str, place: str) -> None:
        """Moves an object that was checked to the end of ``places``, so that the next check begins with others."""
        entry = self._entries.pop((kind, place), None)
        if entry is not None:
            self._entries[kind, place] = entry

    def places(self, kind: str) -> Sequence[str]:
        """Returns the places of all objects of the kind; the one that was checked longest ago first."""
        return [place for entry_kind, place in self._entries if entry_kind == kind]

    def entries(self) -> Sequence[QuarantineEntry]:
        """Returns all entries, sorted by kind and place."""
        return [self._entries[key] for key in sorted(self._entries)]

    def _count(self, kind: str, change: int) -> None:
        self._counts[kind] += change
        self._gauge.labels(kind).set(self._counts[kind])
