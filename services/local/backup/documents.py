"""What is in a backup besides files: JSON lines, compressed, in entries of a few MiB each.

records/000001.jsonl.gz       {kind, id, body, index}
jobs/000001.jsonl.gz          {job: the document, history: [event, ...]}: no event that is newer than the document
unreadable/000001.jsonl.gz    {id, why, document}: kept for who wants to mend them, restored by nobody
secrets/000001.sealed         [{where, name, value}] under the backup's key
metrics/<job>/000001.jsonl.gz {sources: [...]}, then {lines: [...]} and {points: [...]} in order
objects/<key>                 the bytes themselves
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from services.core.ports.metric_store import (
    Extent,
    LogLine,
    Point,
    SourceId,
    SourceState,
    Stored,
    StoredLine,
    StoredPoint,
)
from services.local.backup.archive import Refused, Writer

_FLUSH: Final = 2 * 2**20
"""Characters of JSON in one entry, about."""
_INFLATED: Final = 64 * 2**20
_GZIP: Final = 31
"""zlib's name for a gzip wrapper."""
_LEVEL: Final = 3
"""Four times faster than the usual 6, for a tenth more bytes."""


@dataclass
class Lines:
    """Writes documents of one kind, an entry whenever enough have come together."""

    writer: Writer
    folder: str
    _texts: list[str] = field(default_factory=list)
    _size: int = 0
    _parts: int = 0

    def add(self, document: object) -> None:
        text = json.dumps(document, separators=(",", ":"))
        self._texts.append(text)
        self._size += len(text)
        if self._size > _FLUSH:
            self.flush()

    def flush(self) -> None:
        """What has come together since the last entry."""
        if not self._texts:
            return
        self._parts += 1
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        content = packer.compress("\n".join([*self._texts, ""]).encode()) + packer.flush()
        self.writer.put(f"{self.folder}/{self._parts:06d}.jsonl.gz", content)
        self._texts.clear()
        self._size = 0


def documents(name: str, content: bytes) -> Iterator[Any]:
    """The documents of one entry. Refused where it holds none."""
    unpacker = zlib.decompressobj(_GZIP)
    try:
        text = unpacker.decompress(content, _INFLATED)
        if not unpacker.eof:
            raise Refused(f"entry {name} of the backup is larger than such an entry ever is")
        for line in text.splitlines():
            yield json.loads(line)
    except (zlib.error, ValueError) as error:
        raise Refused(f"entry {name} of the backup cannot be read: {error}") from None


# --- metrics ---------------------------------------------------------------------


def sources_document(extent: Extent) -> dict[str, Any]:
    """What everything else of a job's metrics is from."""
    return {"sources": [[*_source(one.source), one.committed, one.final] for one in extent.sources]}


def lines_document(lines: Sequence[StoredLine], sources: dict[SourceId, int]) -> dict[str, Any]:
    """``sources``: their places in the list of sources."""
    return {
        "lines": [
            [one.seq, sources[one.source], one.line.offset, one.line.time_ms, one.line.text, one.line.partial]
            for one in lines
        ]
    }


def points_document(points: Sequence[StoredPoint], sources: dict[SourceId, int]) -> dict[str, Any]:
    """As ``lines_document``. NaN and infinities are written as Python's JSON writes them."""
    return {
        "points": [
            [one.seq, sources[one.source], p.offset, p.time_ms, p.name, p.step, p.value, dict(p.context)]
            for one in points
            for p in [one.point]
        ]
    }


def read_sources(document: Any) -> list[SourceState]:
    """ValueError, TypeError or KeyError where these are none."""
    return [SourceState(SourceId(*one[:6]), one[6], one[7]) for one in document["sources"]]


def read_stored(document: Any, sources: Sequence[SourceId]) -> Stored:
    """ValueError, TypeError, KeyError or IndexError where these are none."""
    if "lines" in document:
        return [StoredLine(seq, sources[at], LogLine(*rest)) for seq, at, *rest in document["lines"]]
    return [StoredPoint(seq, sources[at], Point(*rest)) for seq, at, *rest in document["points"]]


def _source(one: SourceId) -> list[Any]:
    return [one.attempt, one.role, one.rank, one.run, one.source, one.generation]
