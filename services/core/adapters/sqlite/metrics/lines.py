"""Reads log lines: the SQLite file names the blocks that may match, and each of them is read and filtered.

Users search with patterns of their own, so the engine is RE2: its time is linear in the text for any pattern. Python's
``re`` can run without end, and holds the interpreter's lock. RE2 has no back-references and no look-around; such
patterns raise InvalidRequest. Long searches end at a deadline.
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
"""Blocks whose places are read at once: few at first, because most queries are for the last or the next lines."""
_PATTERN_MOST: Final = 10_000
_REASON_MOST: Final = 200
_PATTERN_BYTES: Final = 8 * 2**20
"""Memory of one compiled pattern."""
_LAST: Final = 2**63 - 1
_BLOCKS: Final = (
    "SELECT last, first, source, segment, position, length, crc FROM blocks WHERE last > ? AND last <= ? AND first < ? "
    "AND max_time >= ? AND min_time <= ? AND source IN (SELECT value FROM json_each(?)) "
)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a block is stored."""

    last: int
    first: int
    source: int
    segment: int
    position: int
    length: int
    crc: int


def compiled(search: str | None) -> Any:
    """The compiled pattern; None without a search. Raises InvalidRequest for an invalid pattern."""
    if search is None:
        return None
    if len(search) > _PATTERN_MOST:
        raise InvalidRequest(f"a search pattern has at most {_PATTERN_MOST} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_BYTES
    try:
        return re2.compile(search, options)
    except re2.error as error:
        why = error.args[0][:_REASON_MOST].decode(errors="replace") if error.args else "it does not compile"
        raise InvalidRequest(f"this is not a valid search pattern: {why} (RE2 syntax: no look-around)") from None
    except UnicodeEncodeError:
        raise InvalidRequest("a search pattern is valid Unicode") from None


class LineReader:
    """One query on one job's lines."""

    def __init__(self, file: JobFile, query: LineQuery, *, deadline: float) -> None:
        """``deadline``: seconds on the monotonic clock, after which ``read`` raises TooLarge."""
        self._file, self._query, self._deadline = file, query, deadline
        self._pattern = compiled(query.search)
        self._since = query.since_ms if query.since_ms is not None else -_LAST
        self._until = query.until_ms if query.until_ms is not None else _LAST
        self._after = min(query.after_seq, _LAST)
        with file.snapshot() as db:
            count: int = db.execute("SELECT lines FROM state").get
            rows: list[Any] = db.execute(SOURCES).fetchall()
        # Lines stored from now on are excluded: their sources may be unknown here. A follower would lose a line that is
        # left out for that if a later one is returned.
        self._before = min(query.before_seq if query.before_seq is not None else _LAST, count + 1)
        sources = {row_id: SourceId(*rest) for row_id, *rest in rows}
        self._sources = {row_id: source for row_id, source in sources.items() if self._wanted(source)}

    def read(self, limit: int) -> list[StoredLine]:
        """The first ``limit`` matching lines, or the first ``limit`` of the last ``tail`` matching lines."""
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
            # In the order of the disk, so that one read returns many blocks.
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
        return all(wanted is None or wanted == actual for wanted, actual in pairs)

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
            raise TooLarge("the search takes too long; narrow it by rank, attempt, time or sequence number")
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
