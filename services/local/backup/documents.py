"""The documents in a backup: compressed JSON lines, in entries of a few MiB each.

records/000001.jsonl.gz       {kind, id, body, index}
jobs/000001.jsonl.gz          {job: the document, history: [event, ...]}: no event newer than the document
unreadable/000001.jsonl.gz    {id, why, document}: kept for repair by hand, never restored
secrets/000001.sealed         {where, name, value}, encrypted under the backup's key
metrics/<job>/000001.jsonl.gz {sources: [...]}, then {lines: [...]} and {points: [...]} in order
objects/<key>                 the bytes of an object

A list may be long, so it may continue in further documents: {history: [...]} of the job before it, {sources: [...]}.
The reader gives parts of a list, too, where an earlier version has written a long one in one document. So neither
needs much memory, however long a list is. A document without its lists, and each item of them, has at most 64 MiB; the
writer refuses what the reader would.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from services.core.domain.codec import MALFORMED, load
from services.core.domain.document import read_job
from services.core.domain.errors import TooLarge
from services.core.domain.job import Event, Job
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
from services.core.ports.record_store import Record
from services.local.backup.archive import Refused, Writer
from services.local.backup.json_parts import MOST, PART, parts

_GZIP: Final = 31
"""zlib's name for a gzip wrapper."""
_LEVEL: Final = 3
"""Four times faster than the default 6, for 10 % more bytes."""
_INFLATE: Final = 2**20
"""Bytes that are decompressed at once: a small entry may hold gigabytes."""


@dataclass
class Lines:
    """Writes documents of one kind: an entry whenever enough have accumulated."""

    writer: Writer
    folder: str
    _texts: list[str] = field(default_factory=list)
    _size: int = 0
    _entries: int = 0

    def add(self, document: object, *, what: str) -> None:
        """Raises TooLarge, which names ``what`` the document is, if no reader would accept it."""
        self._add(_text(document, what))

    def add_list(self, key: str, items: Sequence[Any], fields: Mapping[str, Any] | None = None, *, what: str) -> None:
        """Adds ``{**fields, key: items}``; a long list in several documents, the first with the fields.

        Raises TooLarge as ``add``; then nothing is added.
        """
        for text in list(_split(key, items, fields or {}, what)):
            self._add(text)

    def _add(self, text: str) -> None:
        if self._size + len(text) > PART:
            self.flush()
        self._texts.append(text)
        self._size += len(text)

    def flush(self) -> None:
        """Writes the documents since the last entry; nothing if there are none."""
        if not self._texts:
            return
        self._entries += 1
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        content = packer.compress("\n".join([*self._texts, ""]).encode()) + packer.flush()
        self.writer.put(f"{self.folder}/{self._entries:06d}.jsonl.gz", content, read_whole=False)
        self._texts.clear()
        self._size = 0


def _text(document: object, what: str) -> str:
    text = json.dumps(document, separators=(",", ":"))
    if len(text) > MOST:
        raise TooLarge(f"{what} has {len(text)} characters as JSON, and a backup takes {MOST} at most")
    return text


def _split(key: str, items: Sequence[Any], fields: Mapping[str, Any], what: str) -> Iterator[str]:
    """The texts of documents that have the list between them: of about PART characters, or of one item."""
    document = {**fields, key: items}
    if len(items) <= 1:
        yield _text(document, what)
        return
    text = json.dumps(document, separators=(",", ":"))
    if len(text) <= PART:
        yield text
        return
    share = math.ceil(len(items) / min(len(items), math.ceil(len(text) / PART)))
    del text
    for place in range(0, len(items), share):
        yield from _split(key, items[place : place + share], fields if place == 0 else {}, what)


def documents(name: str, chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The documents of one entry; of one with a long list several, with a part of the list each.

    Raises Refused for content that cannot be read, and for a single value of more than 64 MiB.
    """
    try:
        for document in parts(_inflated(chunks)):
            if not isinstance(document, dict):
                raise ValueError(f"a document is a {type(document).__name__}")  # noqa: TRY004 - it is about the text
            yield document
    except (zlib.error, *MALFORMED) as error:
        raise Refused(f"entry {name} of the backup cannot be read: {error}") from None


def _inflated(chunks: Iterable[bytes]) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(_GZIP)
    for chunk in chunks:
        left = chunk
        while True:
            inflated = unpacker.decompress(left, _INFLATE)
            yield inflated
            left = unpacker.unconsumed_tail
            if not left and len(inflated) < _INFLATE:
                break
    if not unpacker.eof:
        raise ValueError("it is cut off")


# --- records and jobs --------------------------------------------------------------


def read_record(document: Any) -> Record:
    """Parses a record. Raises TypeError or KeyError if it is none."""
    return Record(kind=document["kind"], id=document["id"], body=document["body"], index=document["index"])


def read_saved_job(document: Any) -> Job:
    """Parses the job of a document. Raises Conflict, TypeError or KeyError if there is none."""
    return read_job(document["job"]["id"], document["job"])


def read_history(document: Any) -> list[Event]:
    """Parses the events of a document. Raises ValueError, TypeError or KeyError if there are none."""
    return [load(Event, event) for event in document["history"]]


def whole_jobs(pieces: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Joins the documents of each job: the first has the job, the next ones more of its history."""
    document: dict[str, Any] = {}
    for part in pieces:
        if "job" not in part:
            document["history"] += part["history"]
            continue
        if document:
            yield document
        document = part
    if document:
        yield document


# --- metrics ---------------------------------------------------------------------


def source_rows(extent: Extent) -> list[Any]:
    """The sources that the lines and points of a job refer to by their index."""
    return [[*_source(state.source), state.committed, state.final] for state in extent.sources]


def line_rows(lines: Sequence[StoredLine], sources: dict[SourceId, int]) -> list[Any]:
    """``sources`` maps a source to its index among the sources."""
    return [
        [line.seq, sources[line.source], line.line.offset, line.line.time_ms, line.line.text, line.line.partial]
        for line in lines
    ]


def point_rows(points: Sequence[StoredPoint], sources: dict[SourceId, int]) -> list[Any]:
    """As ``line_rows``. NaN and infinities are written as Python's JSON writes them."""
    return [
        [stored.seq, sources[stored.source], p.offset, p.time_ms, p.name, p.step, p.value, dict(p.context)]
        for stored in points
        for p in [stored.point]
    ]


def read_sources(document: Any) -> list[SourceState]:
    """Parses a document of sources. Raises ValueError, TypeError or KeyError if it is none."""
    return [SourceState(SourceId(*fields[:6]), fields[6], fields[7]) for fields in document["sources"]]


def read_stored(document: Any, sources: Sequence[SourceId]) -> Stored:
    """Parses lines or points. Raises ValueError, TypeError, KeyError or IndexError if they are none."""
    if "lines" in document:
        return [StoredLine(seq, sources[at], LogLine(*rest)) for seq, at, *rest in document["lines"]]
    return [StoredPoint(seq, sources[at], Point(*rest)) for seq, at, *rest in document["points"]]


class Continuous:
    """The lines and points of one job, as long as their numbers follow one another from 1. Each kind has its own.

    A store takes no others. Backups of earlier versions may lack some in between.
    """

    def __init__(self) -> None:
        self._reached = {"lines": 0, "points": 0}
        self.gaps: dict[str, int] = {}
        """``lines`` or ``points`` -> the last number before the first gap."""

    def part(self, document: Any) -> dict[str, list[Any]]:
        """Returns a document of lines or of points without what follows a gap, of this document or an earlier one.

        Raises TypeError, KeyError or IndexError if it is none.
        """
        kind = "lines" if "lines" in document else "points"
        rows: list[Any] = document[kind]
        for place, row in enumerate(rows):
            if kind in self.gaps or row[0] != self._reached[kind] + 1:
                self.gaps.setdefault(kind, self._reached[kind])
                return {kind: rows[:place]}
            self._reached[kind] += 1
        return {kind: rows}

    def warnings(self, job_id: str) -> list[str]:
        return [
            f"the backup lacks {kind} of job {job_id} after number {reached}; the rest of the job is in it"
            for kind, reached in self.gaps.items()
        ]


def _source(source: SourceId) -> list[Any]:
    return [source.attempt, source.role, source.rank, source.run, source.source, source.generation]
