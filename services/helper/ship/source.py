"""One source of a learner: a file that grows, and at times is cut back or replaced.

It holds a position (up to where the metrics service has everything) and gives the next batch from there. In memory is
one window of the file at most, whatever the learner writes: what was not sent yet lies in the file itself.

A *generation* is one file from its first byte to its last. A smaller size or another inode ends it and begins the
next: what was unread of a file that was cut back is lost with its bytes, of one that was replaced it is read first.
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
from services.helper.learner_files import inode_of, open_file, open_folder
from services.helper.ship.changes import Changes
from services.helper.ship.lines import LINE_BYTES, REPORT_BYTES, Piece, split
from services.helper.ship.points import Reported, looks_like_points, parse
from services.helper.ship.times import TimeIndex
from services.helper.spool import Known, Spool

_WINDOW: Final = 256 * 2**10
"""Read at once. More than the longest line, so that each reading gives at least one."""
_LINES: Final = 1_000
"""Cut out of one reading at most: a window of newlines would be a quarter of a million lines."""
_PATH_S: Final = 0.2
"""What a path names is looked at so often: it costs ten times what the size of an open file does."""
_POINT_BYTES: Final = 2**20
"""Points in one batch take about so much at most: what they hang on (name, context) may be longer than their lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a source's file lies, and what is in it."""

    name: str
    """As the metrics service calls it: stdout, stderr, metrics.jsonl, logs/<path>."""
    run: int
    root: Path
    """A folder of the platform's; below it nothing is trusted."""
    parts: Sequence[str]
    text: bool
    """Lines for people, some of which may report points; else JSON lines that only report."""
    ours: bool = False
    """The folder is closed to the learner: nobody replaces the file."""

    @property
    def key(self) -> str:
        return f"{self.run}/{self.name}"


class TailedSource:
    """``look`` as often as you like, then ``batch`` and ``accept`` in turns; ``done`` at last."""

    def __init__(
        self, place: Place, identity: Source, uid: int, spool: Spool, *, clock: Callable[[], int],
        reported: Callable[[Reported], None],
    ) -> None:  # fmt: skip
        self.place = place
        self._identity = identity
        self._uid = uid
        self._spool = spool
        self._clock = clock
        self._reported = reported
        self._known = spool.source(place.key) or Known()
        self._times = TimeIndex(spool.times(f"{place.key}.{self._known.generation}"))
        self._fd: int | None = None
        self._size = 0
        self._position = 0
        self._pieces: deque[Piece] = deque()
        """What comes from ``_position`` on, as far as it is read."""
        self._ended = False
        """This generation will not grow any more."""
        self._finished = False
        """And the metrics service knows, and has all of it."""
        self._left: dict[int, int] = {}
        """Earlier generations whose end is still to be told, and up to where they were taken in."""
        self._last = False
        """The learner has exited."""
        self._quiet_at = -1
        """The size at which there was nothing complete to send."""
        self._path_due = 0.0

    @property
    def done(self) -> bool:
        """Everything is taken in and nothing will follow."""
        read = self._fd is None or (self._finished and not self._replaced())
        return self._last and read and not self._left

    def resume(self, generation: int, committed: int, *, final: bool) -> None:
        """What the metrics service has of a generation, by its word at the beginning of a conversation."""
        if generation < self._known.generation:
            if not final:
                self._left[generation] = committed
            return
        if generation > self._known.generation:
            self._begin(generation)
        self._rewind(committed)
        self._finished = final

    def is_of(self, other: Source) -> bool:
        """Whether that is this source, of any generation."""
        mine = self._identity
        return (mine.attempt, mine.rank, mine.run, mine.source) == (other.attempt, other.rank, other.run, other.source)

    def look(self) -> None:
        """Notices what has become of the file. Cheap: it is done ten times a second for as long as the learner runs."""
        now = time.monotonic()
        if self._last or now >= self._path_due:
            self._path_due = now + _PATH_S
            self._look_at_path()
        if self._fd is None:
            return
        size = os.fstat(self._fd).st_size
        if size < self._position:
            self._begin(self._known.generation + 1)
            self._open()
        elif size != self._size:
            self._size = size
            self._times.saw(size, self._clock())

    def _look_at_path(self) -> None:
        if self._fd is None:
            self._open()
        elif self._replaced():
            if self._finished:
                self._begin(self._known.generation + 1)
                self._open()
            else:
                self._ended = True

    @property
    def unsent(self) -> int:
        """Bytes, as of the last look."""
        return max(0, self._size - self._position)

    @property
    def fresh(self) -> bool:
        """Whether it has grown, or was opened, since it was last found to have nothing to send."""
        return self._fd is not None and not self._finished and self._size != self._quiet_at

    def watch(self, changes: Changes) -> bool:
        """Whether ``changes`` will tell of whatever happens to the file from its last look on."""
        self._path_due = 0.0  # the look after the next change is at the path, too
        if self._fd is not None and not changes.file(self._fd):
            return False
        if self.place.ours:
            return self._fd is not None
        try:
            folder = open_folder(self.place.root, self.place.parts[:-1])
        except OSError:
            return False
        try:
            return changes.folder(folder)
        finally:
            os.close(folder)

    def end(self) -> None:
        """The learner has exited: what is in the file now is all there will be."""
        self._last = self._ended = True
        self.look()

    def batch(self, max_bytes: int, max_lines: int) -> SourceBatch | None:
        """The next bytes and what they hold, about so much at most; None where nothing is complete."""
        for generation, committed in self._left.items():
            return SourceBatch(source=self._source(generation), start=committed, end=committed, final=True)
        if self._fd is None or self._finished or (not self._ended and self._quiet_at == self._size):
            return None
        out = SourceBatch(source=self._source(self._known.generation), start=self._position, end=self._position)
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
            self._quiet_at = self._size
            return None
        return out

    def accept(self, batch: SourceBatch, committed: int) -> None:
        """The answer to a batch: its end, or else from where to go on."""
        generation = batch.source.generation
        if generation in self._left:
            self._left[generation] = committed
            if batch.final and committed == batch.end:
                del self._left[generation]
        elif generation == self._known.generation:
            if committed != batch.end:
                self._rewind(committed)
                return
            self._position = committed
            while self._pieces and self._pieces[0].end <= committed:
                self._pieces.popleft()
            self._finished = batch.final

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
            self._fd = open_file(self.place.root, self.place.parts, self._uid)
        except OSError:
            return
        status = os.fstat(self._fd)
        if self._known.inode not in {0, status.st_ino} or status.st_size < self._position:
            # Another file than the one whose beginning was sent, maybe by a helper before us.
            fd, self._fd = self._fd, None
            self._begin(self._known.generation + 1)
            self._fd = fd
        self._remember(Known(generation=self._known.generation, inode=status.st_ino))

    def _replaced(self) -> bool:
        if self.place.ours:
            return False
        now = inode_of(self.place.root, self.place.parts)
        return now is not None and now != self._known.inode

    def _begin(self, generation: int) -> None:
        """The next generation, from its first byte. In the spool before anything of it is sent."""
        self.close()
        if not self._finished and (self._position or self._known.inode):
            self._left[self._known.generation] = self._position
        self._pieces.clear()
        self._position = self._size = 0
        self._finished = False
        self._ended = self._last
        self._quiet_at = -1
        self._remember(Known(generation=generation))
        self._times.close()
        self._times = TimeIndex(self._spool.times(f"{self.place.key}.{generation}"))

    def _remember(self, known: Known) -> None:
        self._known = known
        self._spool.save_source(self.place.key, known)

    def _rewind(self, committed: int) -> None:
        self._pieces.clear()
        self._position = committed
        self._quiet_at = -1

    def _fill(self) -> None:
        if self._pieces or self._fd is None:
            return
        data = os.pread(self._fd, min(_WINDOW, max(0, self._size - self._position)), self._position)
        ended = self._ended and self._position + len(data) >= self._size
        limit = LINE_BYTES if self.place.text else REPORT_BYTES
        self._pieces.extend(islice(split(data, self._position, ended=ended, limit=limit), _LINES))

    def _add(self, out: SourceBatch, piece: Piece) -> int:
        """Takes the piece into the batch; about how many bytes of points it is."""
        time_ms = self._times.at(piece.end)
        if self.place.text:
            out.lines.add(offset=piece.start, time_ms=time_ms, text=piece.text, partial=piece.partial)
            if piece.partial or not looks_like_points(piece.raw):
                return 0
        found = parse(piece.raw) if not piece.partial else None
        if found is None:
            return 0
        size = 0
        around = 40 + sum(len(name) + len(text) for name, text in found.context.items())
        for name, value in found.values.items():
            size += around + len(name)
            out.points.add(
                offset=piece.start, time_ms=found.time_ms or time_ms, name=name, step=found.step, value=value,
                context=found.context,
            )  # fmt: skip
        self._reported(found)
        return size
