"""Reads log lines: the SQLite file names the blocks that may match, and each of them is read and filtered.

Users search with patterns of their own, so the engine is RE2: its time is linear in the text for any pattern. Python's
``re`` can run without end, and holds the interpreter's lock. RE2 has no back-references and no look-around; such
patterns raise InvalidRequest. Long searches stop at a deadline, and say where. Each query reads some blocks at
least, so a search that is continued comes to its end.
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
from services.core.domain.errors import InvalidRequest
from services.core.ports.metric_store import LinePage, LineQuery, SourceId, StoredLine

_FIRST_PAGE: Final = 2
_PAGE: Final = 128
"""Blocks whose places are read at once: few at first, because most queries are for the last or the next lines."""
_PATTERN_MOST: Final = 10_000
_REASON_MOST: Final = 200
_PATTERN_BYTES: Final = 8 * 2**20
"""Memory of one compiled pattern."""
LAST: Final = 2**63 - 1
PLACE: Final = "last, first, source, segment, position, length, crc"
_BLOCKS: Final = (
    f"SELECT {PLACE} FROM blocks WHERE last > ? AND last <= ? AND first < ? "
    "AND max_time >= ? AND min_time <= ? AND source IN (SELECT value FROM json_each(?)) "
)
# ruff: noqa: S608 - the parts of these statements are constants; values from outside are bound


@dataclass(frozen=True, slots=True)
class Place:
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


class Matcher:
    """What one query wants of one job's lines, whatever their order."""

    def __init__(self, file: JobFile, query: LineQuery) -> None:
        self.query = query
        self._pattern = compiled(query.search)
        self.since = query.since_ms if query.since_ms is not None else -LAST
        self.until = query.until_ms if query.until_ms is not None else LAST
        with file.snapshot() as db:
            self.count: int = db.execute("SELECT lines FROM state").get
            rows: list[Any] = db.execute(SOURCES).fetchall()
        self.all_sources = {row_id: SourceId(*rest) for row_id, *rest in rows}
        self.sources = {row_id: source for row_id, source in self.all_sources.items() if self._wanted(source)}

    def _wanted(self, source: SourceId) -> bool:
        query = self.query
        pairs = (
            (query.rank, source.rank),
            (query.role, source.role),
            (query.attempt, source.attempt),
            (query.stream, source.source),
        )
        return all(wanted is None or wanted == actual for wanted, actual in pairs)

    def positions(self, block: Block, start: int, end: int) -> list[int]:
        """Those of the block's lines ``start`` to ``end`` (exclusive) that match."""
        positions = list(range(start, end))
        if self.query.since_ms is not None or self.query.until_ms is not None:
            positions = [at for at in positions if self.since <= block.times[at] <= self.until]
        if self._pattern is not None:
            search, texts = self._pattern.search, block.texts
            positions = [at for at in positions if search(texts[at]) is not None]
        return positions


def read_block(reader: SegmentReader, place: Place) -> Block:
    """Raises Damaged if its bytes were changed."""
    return decode(reader.read(place.segment, place.position, place.length), place.crc)


class LineReader:
    """One query on one job's lines, in order of seq."""

    def __init__(self, file: JobFile, query: LineQuery, *, deadline: float) -> None:
        """``deadline``: seconds on the monotonic clock, after which ``read`` stops."""
        self._file, self._deadline = file, deadline
        self._matcher = Matcher(file, query)
        self._tail = query.tail
        self._after = min(query.after_seq, LAST)
        # Lines stored from now on are excluded: their sources may be unknown here. A follower would lose a line that is
        # left out for that if a later one is returned.
        self._before = min(query.before_seq if query.before_seq is not None else LAST, self._matcher.count + 1)

    def read(self, limit: int) -> LinePage:
        """The first ``limit`` matching lines, or the first ``limit`` of the last ``tail`` matching lines."""
        reader = SegmentReader(self._file.folder)
        try:
            if self._tail is None:
                return self._first(reader, limit)
            page = self._last(reader, self._tail)
            return LinePage(page.lines[:limit], page.stopped_at)
        finally:
            reader.close()

    def _first(self, reader: SegmentReader, limit: int) -> LinePage:
        out: list[StoredLine] = []
        searched: int | None = None
        for page in self._pages(newest_first=False):
            for place in page:
                if searched is not None and self._is_late():
                    return LinePage(out, searched)
                out += self._matching(reader, place)
                searched = place.last
                if len(out) >= limit:
                    return LinePage(out[:limit])
        return LinePage(out)

    def _last(self, reader: SegmentReader, tail: int) -> LinePage:
        parts: list[list[StoredLine]] = []
        count = 0
        searched: int | None = None
        stopped_at: int | None = None
        pages = self._pages(newest_first=True)
        while count < tail and (page := next(pages, None)):
            # In the order of the disk, so that one read returns many blocks: a page that is read in part is no use.
            part: list[StoredLine] = []
            for place in reversed(page):
                if searched is not None and self._is_late():
                    stopped_at = searched
                    break
                part += self._matching(reader, place)
            if stopped_at is not None:
                break
            searched = page[-1].first
            parts.append(part)
            count += len(part)
        out = [line for part in reversed(parts) for line in part]
        return LinePage(out[max(0, len(out) - tail) :], stopped_at)

    def _pages(self, *, newest_first: bool) -> Iterator[list[Place]]:
        ids = json.dumps(list(self._matcher.sources))
        order = "ORDER BY last DESC" if newest_first else "ORDER BY last"
        after, up_to = self._after, LAST
        size = _FIRST_PAGE
        while self._matcher.sources:
            bindings = (after, up_to, self._before, self._matcher.since, self._matcher.until, ids, size)
            with self._file.snapshot() as db:
                rows: list[Any] = db.execute(f"{_BLOCKS} {order} LIMIT ?", bindings).fetchall()
            if not rows:
                return
            page = [Place(*row) for row in rows]
            yield page
            size = min(2 * size, _PAGE)
            if newest_first:
                up_to = page[-1].first - 1
            else:
                after = page[-1].last

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _matching(self, reader: SegmentReader, place: Place) -> list[StoredLine]:
        block, first = read_block(reader, place), place.first
        start, end = max(0, self._after + 1 - first), min(len(block.texts), self._before - first)
        source = self._matcher.sources[place.source]
        return [StoredLine(first + at, source, block.line(at)) for at in self._matcher.positions(block, start, end)]
