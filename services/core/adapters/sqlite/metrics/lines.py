"""Reading log lines: which blocks may hold them is asked of the SQLite file, the rest is looked at block by block.

Users search with patterns of their own, so the engine is RE2: its time is linear in the text whatever the pattern is
(Python's ``re`` can take for ever, and holds the interpreter's lock meanwhile). What that costs its users: no
back-references and no look-around, said so by an InvalidRequest. Long searches end at a deadline all the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import re2

from services.core.adapters.sqlite.metrics.curves import SOURCES
from services.core.adapters.sqlite.metrics.job_file import JobFile
from services.core.adapters.sqlite.metrics.segments import Block, SegmentReader, decode
from services.core.domain.errors import InvalidRequest, TooLarge
from services.core.ports.metric_store import LineQuery, SourceId, StoredLine

_FIRST_PAGE: Final = 2
_PAGE: Final = 128
"""Blocks whose places are fetched at once: few at first, for most ask for the last lines or the next ones."""
_PATTERN_MOST: Final = 10_000
_REASON_MOST: Final = 200
_PATTERN_BYTES: Final = 8 * 2**20
"""Memory that one compiled pattern may take."""
_LAST: Final = 2**63 - 1
_BLOCKS: Final = (
    "SELECT last, first, source, segment, position, length, crc FROM blocks WHERE last > ? AND last <= ? AND first < ? "
    "AND max_time >= ? AND min_time <= ? AND source IN (SELECT value FROM json_each(?)) "
)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a block lies."""

    last: int
    first: int
    source: int
    segment: int
    position: int
    length: int
    crc: int


def compiled(search: str | None) -> Any:
    """The pattern, or None for none. InvalidRequest where it is none."""
    if search is None:
        return None
    if len(search) > _PATTERN_MOST:
        raise InvalidRequest(f"a pattern to search for has at most {_PATTERN_MOST} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_BYTES
    try:
        return re2.compile(search, options)
    except re2.error as error:
        why = error.args[0][:_REASON_MOST].decode(errors="replace") if error.args else "it does not compile"
        raise InvalidRequest(f"this is no pattern to search for: {why} (RE2 syntax: no look-around)") from None
    except UnicodeEncodeError:
        raise InvalidRequest("a pattern to search for is valid Unicode") from None


class LineReader:
    """One query over one job's lines."""

    def __init__(self, file: JobFile, query: LineQuery, *, deadline: float) -> None:
        """``deadline``: on the monotonic clock; TooLarge is raised at it."""
        self._file, self._query, self._deadline = file, query, deadline
        self._pattern = compiled(query.search)
        self._since = query.since_ms if query.since_ms is not None else -_LAST
        self._until = query.until_ms if query.until_ms is not None else _LAST
        self._after = min(query.after_seq, _LAST)
        with file.snapshot() as db:
            count: int = db.execute("SELECT lines FROM state").get
            rows: list[Any] = db.execute(SOURCES).fetchall()
        # What is stored meanwhile is not looked at: its sources may be unknown here, and a line left out for that
        # while a later one is given would be lost to a follower.
        self._before = min(query.before_seq if query.before_seq is not None else _LAST, count + 1)
        found = {row_id: SourceId(*rest) for row_id, *rest in rows}
        self._sources = {row_id: source for row_id, source in found.items() if self._wanted(source)}

    def read(self, limit: int) -> list[StoredLine]:
        """The first ``limit`` of those that match, or of the last ``tail`` of them."""
        reader = SegmentReader(self._file.folder)
        try:
            if self._query.tail is not None:
                return self._last(reader, self._query.tail)[:limit]
            out: list[StoredLine] = []
            for page in self._pages(newest_first=False):
                for place in page:
                    out += self._matching(reader, place)
                    if len(out) >= limit:
                        return out[:limit]
            return out
        finally:
            reader.close()

    def _last(self, reader: SegmentReader, tail: int) -> list[StoredLine]:
        parts: list[list[StoredLine]] = []
        count = 0
        pages = self._pages(newest_first=True)
        while count < tail and (page := next(pages, None)):
            # In the order of the disk, so that one read brings many blocks.
            part = [line for place in reversed(page) for line in self._matching(reader, place)]
            parts.append(part)
            count += len(part)
        out = [line for part in reversed(parts) for line in part]
        return out[max(0, len(out) - tail) :]

    def _wanted(self, source: SourceId) -> bool:
        query = self._query
        pairs = (
            (query.rank, source.rank),
            (query.role, source.role),
            (query.attempt, source.attempt),
            (query.stream, source.source),
        )
        return all(asked is None or asked == is_ for asked, is_ in pairs)

    def _pages(self, *, newest_first: bool) -> Iterator[list[_Place]]:
        ids = json.dumps(list(self._sources))
        order = "ORDER BY last DESC" if newest_first else "ORDER BY last"
        after, up_to = self._after, _LAST
        size = _FIRST_PAGE
        while self._sources:
            bindings = (after, up_to, self._before, self._since, self._until, ids, size)
            with self._file.snapshot() as db:
                rows: list[Any] = db.execute(f"{_BLOCKS} {order} LIMIT ?", bindings).fetchall()
            if not rows:
                return
            page = [_Place(*row) for row in rows]
            yield page
            size = min(2 * size, _PAGE)
            if newest_first:
                up_to = page[-1].first - 1
            else:
                after = page[-1].last

    def _matching(self, reader: SegmentReader, place: _Place) -> list[StoredLine]:
        if time.monotonic() > self._deadline:
            raise TooLarge("there is too much to look through; narrow it by rank, attempt, time or sequence number")
        block = decode(reader.read(place.segment, place.position, place.length), place.crc)
        source, first = self._sources[place.source], place.first
        return [StoredLine(first + at, source, block.line(at)) for at in self._positions(block, first)]

    def _positions(self, block: Block, first: int) -> list[int]:
        start = max(0, self._after + 1 - first)
        end = min(len(block.texts), self._before - first)
        positions = list(range(start, end))
        if self._query.since_ms is not None or self._query.until_ms is not None:
            positions = [at for at in positions if self._since <= block.times[at] <= self._until]
        if self._pattern is not None:
            search, texts = self._pattern.search, block.texts
            positions = [at for at in positions if search(texts[at]) is not None]
        return positions
