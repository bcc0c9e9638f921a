"""One source of a learner: a file that grows, and at times is truncated or replaced.

It keeps a position, up to which the metrics service has everything, and gives the next batch from there. At most one
window of the file is in memory, whatever the learner writes: unsent bytes stay in the file itself.

A *generation* is one file from its first byte to its last. A smaller size or another inode ends it and begins the
next. Unread bytes of a truncated file are lost; a replaced file is read to its end first.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from services.core.gen.weft.v1.metrics_pb2 import Source, SourceBatch
from services.core.runtime.undo import undo_on_failure
from services.helper.changes import Changes, watch_folder
from services.helper.learner_files import inode_of, open_file
from services.helper.ship.lines import LINE_BYTES, REPORT_BYTES, Piece, split, visible_part
from services.helper.ship.points import ParsedReport, may_hold_points, parse_report
from services.helper.ship.times import TimeIndex
from services.helper.spool import SourceState, Spool

_WINDOW: Final = 256 * 2**10
"""Bytes that are read at once. More than the longest line, so that each reading gives at least one."""
_LINES: Final = 1_000
"""Lines that are taken from one window at most: a window of newlines would give a quarter of a million."""
_BAR_WINDOW: Final = 4 * 2**10
"""Bytes from the end in which the state of a progress bar is searched."""
_BAR_CHARS: Final = 300
_PATH_S: Final = 0.2
"""How often the path is checked for another file: it costs ten times as much as the size of an open file."""
_POINT_BYTES: Final = 2**20
"""Size of the points of one batch at most: name and context, repeated for each, may be longer than their lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """Where a source's file lies, and what it contains."""

    name: str
    """The source's name in the metrics service: stdout, stderr, metrics.jsonl, logs/<path>."""
    run: int
    root: Path
    """A folder of the platform. Below it nothing is trusted."""
    parts: Sequence[str]
    text: bool
    """Log lines, some of which may report points; else JSON lines that only report."""
    is_closed: bool = False
    """The learner cannot change the folder, so the file is never replaced."""

    @property
    def key(self) -> str:
        return f"{self.run}/{self.name}"


class TailedSource:
    """Call ``refresh`` at any time, and ``next_batch`` and ``accept`` in turns until ``is_done``."""

    def __init__(
        self,
        file: SourceFile,
        identity: Source,
        uid: int,
        spool: Spool,
        *,
        clock: Callable[[], int],
        on_report: Callable[[ParsedReport], None],
    ) -> None:
        """``uid``: the learner's. ``clock``: Unix ms. ``on_report`` gets each report once, or again after a restart."""
        self.file = file
        self._identity = identity
        self._uid = uid
        self._spool = spool
        self._clock = clock
        self._on_report = on_report
        self._state = spool.source(file.key) or SourceState()
        self._times = self._open_times()
        self._fd: int | None = None
        self._size = 0
        self._position = 0
        self._pieces: deque[Piece] = deque()
        """Read from ``_position`` on, and not committed."""
        self._ended = False
        """This generation will not grow."""
        self._finished = False
        """This generation is committed as final."""
        self._unfinished: dict[int, int] = {}
        """Earlier generations that are not committed as final yet, with their committed offsets."""
        self._exited = False
        """The learner has exited."""
        self._nothing_at = -1
        """The size at which there was nothing complete to send."""
        self._path_check_at = 0.0

    @property
    def name(self) -> str:
        """Its name in the metrics service."""
        return self.file.name

    @property
    def is_done(self) -> bool:
        """Everything is committed and nothing will follow."""
        is_read = self._fd is None or (self._finished and not self._is_replaced())
        return self._exited and is_read and not self._unfinished

    def resume(self, generation: int, committed: int, *, final: bool) -> None:
        """Sets the committed offset of a generation, from the metrics service's answer to Hello."""
        if generation < self._state.generation:
            if not final:
                self._unfinished[generation] = committed
            return
        if generation > self._state.generation:
            self._begin(generation)
        self._rewind(committed)
        self._finished = final

    def matches(self, other: Source) -> bool:
        """Whether ``other`` is this source, of any generation."""
        own = self._identity
        return (own.attempt, own.rank, own.run, own.source) == (other.attempt, other.rank, other.run, other.source)

    def refresh(self) -> None:
        """Reads the file's size, and whether it was replaced. Cheap: called ten times a second for days."""
        now = time.monotonic()
        if self._exited or now >= self._path_check_at:
            self._path_check_at = now + _PATH_S
            self._check_path()
        if self._fd is None:
            return
        size = os.fstat(self._fd).st_size
        if size < self._position:
            self._begin(self._state.generation + 1)
            self._open()
        elif size != self._size:
            self._size = size
            self._times.record(size, self._clock())

    def _check_path(self) -> None:
        if self._fd is None:
            self._open()
        elif self._is_replaced():
            if self._finished:
                self._begin(self._state.generation + 1)
                self._open()
            else:
                self._ended = True

    @property
    def unsent(self) -> int:
        """Bytes, as of the last ``refresh``."""
        return max(0, self._size - self._position)

    @property
    def may_have_lines(self) -> bool:
        """Whether it has grown, or was opened, since ``next_batch`` last had nothing to send."""
        return self._fd is not None and not self._finished and self._size != self._nothing_at

    def watch(self, changes: Changes) -> bool:
        """Adds the file and its folder to ``changes``. Returns whether every change from now on is noticed."""
        self._path_check_at = 0.0  # a change may be another file of this name
        if self._fd is not None and not changes.file(self._fd):
            return False
        if self.file.is_closed:
            return self._fd is not None
        return watch_folder(changes.folder, self.file.root, self.file.parts[:-1])

    def finish(self) -> None:
        """The learner has exited: the file will not grow."""
        self._exited = self._ended = True
        self.refresh()

    def next_batch(self, max_bytes: int, max_lines: int) -> SourceBatch | None:
        """The next lines and points, about so many at most; None where nothing is complete.

        The same batch again until ``accept`` is called.
        """
        for generation, committed in self._unfinished.items():
            return SourceBatch(source=self._source(generation), start=committed, end=committed, final=True)
        if self._fd is None or self._finished or (not self._ended and self._nothing_at == self._size):
            return None
        out = SourceBatch(source=self._source(self._state.generation), start=self._position, end=self._position)
        self._fill()
        points = 0
        for piece in self._pieces:
            if len(out.lines) >= max_lines or points >= _POINT_BYTES:
                break
            if out.end > out.start and piece.end - out.start > max_bytes:
                break
            points += self._add(out, piece)
            out.end = piece.end
        out.final = self._ended and out.end >= self._size
        if out.end == out.start and not out.final:
            self._nothing_at = self._size
            return None
        return out

    def accept(self, batch: SourceBatch, committed: int) -> None:
        """Takes the service's answer to a batch: ``committed`` is its end, or the offset to continue from."""
        generation = batch.source.generation
        if generation in self._unfinished:
            self._unfinished[generation] = committed
            if batch.final and committed == batch.end:
                del self._unfinished[generation]
        elif generation == self._state.generation:
            if committed != batch.end:
                self._rewind(committed)
                return
            self._position = committed
            while self._pieces and self._pieces[0].end <= committed:
                self._pieces.popleft()
            self._finished = batch.final

    def bar(self) -> str:
        """The state of a progress bar at the end of a text, as a terminal shows it; empty if it ends otherwise.

        A line that contains a carriage return and has not ended yet is a progress bar.
        """
        if self._fd is None or not self.file.text:
            return ""
        size = os.fstat(self._fd).st_size
        data = os.pread(self._fd, _BAR_WINDOW, max(0, size - _BAR_WINDOW))
        unfinished = data.rpartition(b"\n")[2]
        if b"\r" not in unfinished:
            return ""
        return Piece(0, 0, visible_part(unfinished), partial=True).text[:_BAR_CHARS]

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _source(self, generation: int) -> Source:
        out = Source()
        out.CopyFrom(self._identity)
        out.generation = generation
        return out

    def _open(self) -> None:
        try:
            fd = open_file(self.file.root, self.file.parts, self._uid)
        except OSError:
            return
        with undo_on_failure(lambda: os.close(fd)):
            status = os.fstat(fd)
            if self._state.inode not in {0, status.st_ino} or status.st_size < self._position:
                # Another file than the one whose beginning was sent, perhaps by an earlier helper.
                self._begin(self._state.generation + 1)
        self._fd = fd
        self._save_state(SourceState(generation=self._state.generation, inode=status.st_ino))

    def _is_replaced(self) -> bool:
        if self.file.is_closed:
            return False
        inode = inode_of(self.file.root, self.file.parts)
        return inode is not None and inode != self._state.inode

    def _begin(self, generation: int) -> None:
        """Starts a generation at its first byte. Saved before anything of it is sent.

        The generation has begun also where this raises NoSpace: else what follows would be taken for the former file's.
        """
        self.close()
        if not self._finished and (self._position or self._state.inode):
            self._unfinished[self._state.generation] = self._position
        self._pieces.clear()
        self._position = self._size = 0
        self._finished = False
        self._ended = self._exited
        self._nothing_at = -1
        self._times.remove()  # each generation has its own times, and a learner may begin any number of them
        self._state = SourceState(generation=generation)
        self._times = self._open_times()
        self._save_state(self._state)

    def _open_times(self) -> TimeIndex:
        return TimeIndex(self._spool.times_file(f"{self.file.key}.{self._state.generation}"))

    def _save_state(self, state: SourceState) -> None:
        self._state = state
        self._spool.save_source(self.file.key, state)

    def _rewind(self, committed: int) -> None:
        self._pieces.clear()
        self._position = committed
        self._nothing_at = -1

    def _fill(self) -> None:
        if self._pieces or self._fd is None:
            return
        data = os.pread(self._fd, min(_WINDOW, max(0, self._size - self._position)), self._position)
        ended = self._ended and self._position + len(data) >= self._size
        limit = LINE_BYTES if self.file.text else REPORT_BYTES
        self._pieces.extend(islice(split(data, self._position, ended=ended, limit=limit), _LINES))

    def _add(self, out: SourceBatch, piece: Piece) -> int:
        """Adds the piece to the batch. Returns about how many bytes its points take."""
        time_ms = self._times.time_at(piece.end)
        if self.file.text:
            if not piece.superseded:
                out.lines.add(offset=piece.start, time_ms=time_ms, text=piece.text, partial=piece.partial)
            if piece.partial or not may_hold_points(piece.raw):
                return 0
        report = parse_report(piece.raw) if not piece.partial else None
        if report is None:
            return 0
        size = 0
        overhead = 40 + sum(len(name) + len(text) for name, text in report.context.items())
        for name, value in report.values.items():
            size += overhead + len(name)
            out.points.add(
                offset=piece.start,
                time_ms=report.time_ms or time_ms,
                name=name,
                step=report.step,
                value=value,
                context=report.context or None,  # an empty mapping takes as long as the rest of the point
            )
        self._on_report(report)
        return size
