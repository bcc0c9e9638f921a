"""Reads log lines in the order of their times, over all sources of a job; of equal times by seq.

Lines are stored in the order of their arrival: some of one learner, then some of another. A block's smallest and
largest time are in the SQLite file, so blocks are opened in the order of these, and a line is returned once no block
that is not open can have an earlier one. Clocks that were set back make a query open more blocks, and change no result.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Iterator
from typing import Any, Final

from services.core.adapters.sqlite.metrics.job_file import JobFile
from services.core.adapters.sqlite.metrics.lines import LAST, PLACE, Matcher, Place, read_block
from services.core.adapters.sqlite.metrics.segments import SegmentReader
from services.core.ports.metric_store import LinePage, LineQuery, StoredLine

_FIRST_PAGE: Final = 64
_LARGEST_PAGE: Final = 8192
"""Blocks whose places are read at once."""
_FIRST: Final = (-LAST, 0)
_NEVER: Final = (LAST, LAST)
# ruff: noqa: S608 - the parts of these statements are constants; values from outside are bound
_BLOCKS: Final = (
    f"SELECT {PLACE}, {{edge}} FROM blocks WHERE max_time >= :since AND min_time <= :until AND first <= :count "
    "AND source IN (SELECT value FROM json_each(:sources)) "
)
_EARLIEST: Final = _BLOCKS.format(edge="min_time") + (
    "AND (min_time, last) > (:edge, :last) ORDER BY min_time, last LIMIT :size"
)
_LATEST: Final = _BLOCKS.format(edge="max_time") + (
    "AND (max_time, last) < (:edge, :last) ORDER BY max_time DESC, last DESC LIMIT :size"
)
_HOLDS: Final = f"SELECT {PLACE} FROM blocks WHERE last >= ? ORDER BY last LIMIT 1"
_Key = tuple[int, int]
"""(time, seq) of a line, both negative for the order from the latest to the earliest."""


class TimeOrderReader:
    """One query on one job's lines, in order of time."""

    def __init__(self, file: JobFile, query: LineQuery, *, deadline: float) -> None:
        """``deadline``: seconds on the monotonic clock, after which ``read`` stops."""
        self._file, self._deadline = file, deadline
        self._matcher = Matcher(file, query)
        self._tail = query.tail
        self._after, self._before = query.after_seq, query.before_seq

    def read(self, limit: int) -> LinePage:
        """The first ``limit`` matching lines, or the first ``limit`` of the last ``tail`` matching lines."""
        reader = SegmentReader(self._file.folder)
        try:
            after = self._key_of(reader, self._after)
            before = self._key_of(reader, self._before) if self._before is not None else _NEVER
            if self._tail is None:
                return self._merged(reader, after, before, limit, newest_first=False)
            page = self._merged(reader, after, before, self._tail, newest_first=True)
            return LinePage(page.lines[::-1][:limit], page.stopped_at)
        finally:
            reader.close()

    def _key_of(self, reader: SegmentReader, seq: int) -> _Key:
        """The place of the line in the order of time. A line that is not stored yet is after all others."""
        if seq < 1:
            return _FIRST
        if seq > self._matcher.count:
            return _NEVER
        with self._file.snapshot() as db:
            rows: list[Any] = db.execute(_HOLDS, (seq,)).fetchall()
        [place] = [Place(*row) for row in rows]
        return read_block(reader, place).times[seq - place.first], seq

    def _merged(self, reader: SegmentReader, after: _Key, before: _Key, most: int, *, newest_first: bool) -> LinePage:
        """The first ``most`` lines between ``after`` and ``before``, or the last ones, latest first."""
        sign = -1 if newest_first else 1
        since, until = max(after[0], self._matcher.since), min(before[0], self._matcher.until)
        begin = (-before[0], -before[1]) if newest_first else after
        heap: list[tuple[_Key, StoredLine]] = []
        ends: list[_Key] = []
        """Of each open block its last line in the order of reading: a search that stops gets beyond ``begin``."""
        out: list[StoredLine] = []
        searched: _Key | None = None
        for place, edge in self._places(since, until, newest_first=newest_first):
            reached = sign * edge  # no block from here on has a line before this time
            while heap and heap[0][0][0] < reached and len(out) < most:
                out.append(heapq.heappop(heap)[1])
            if len(out) >= most:
                return LinePage(out)
            while ends and ends[0][0] < reached:
                searched = heapq.heappop(ends)
            if searched is not None and time.monotonic() > self._deadline:
                last = (sign * out[-1].line.time_ms, sign * out[-1].seq) if out else searched
                return LinePage(out, sign * max(last, searched)[1])
            block, first = read_block(reader, place), place.first
            source, end = self._matcher.sources[place.source], min(len(block.texts), self._matcher.count + 1 - first)
            keys = [(sign * block.times[at], sign * (first + at)) for at in range(end)]
            if (end_key := max(keys)) > begin:
                heapq.heappush(ends, end_key)
            for at in self._matcher.positions(block, 0, end):
                if after < (block.times[at], first + at) < before:
                    heapq.heappush(heap, (keys[at], StoredLine(first + at, source, block.line(at))))
        out += [heapq.heappop(heap)[1] for _ in range(min(len(heap), most - len(out)))]
        return LinePage(out)

    def _places(self, since: int, until: int, *, newest_first: bool) -> Iterator[tuple[Place, int]]:
        """Blocks with lines in this time, in the order of their first or, ``newest_first``, their last time; and it."""
        bindings: dict[str, Any] = {
            "since": since,
            "until": until,
            "count": self._matcher.count,
            "size": _FIRST_PAGE,
            "sources": json.dumps(list(self._matcher.sources)),
            "edge": LAST if newest_first else -LAST,
            "last": LAST if newest_first else 0,
        }
        while self._matcher.sources:
            with self._file.snapshot() as db:
                rows: list[Any] = db.execute(_LATEST if newest_first else _EARLIEST, bindings).fetchall()
            for *place, edge in rows:
                yield Place(*place), edge
            if len(rows) < bindings["size"]:
                return
            bindings.update(edge=rows[-1][-1], last=rows[-1][0], size=min(2 * bindings["size"], _LARGEST_PAGE))
