"""Progress bars of learners on the last line of a terminal, below the lines that they print."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

from weft._cli.text import one_line
from weft._errors import WeftError

if TYPE_CHECKING:
    from weft._cli.call import Call

_POLL_S: Final = 1.0
_ERASE: Final = "\r\x1b[K"
"""Back to the first column, and erase the line."""


def bar_texts(progress: Mapping[str, Any], *, several: bool, learner: str | None = None) -> list[str]:
    """The progress bars of an answer of the API, harmless to terminals. ``learner``: of this one only."""
    bars: Sequence[Mapping[str, Any]] = progress.get("bars") or ()
    return [
        f"{bar['learner']} | {one_line(bar['text'])}" if several else one_line(bar["text"])
        for bar in bars
        if learner in {None, bar["learner"]}
    ]


class BarLine:
    """Writes whole text above one line that may change. Thread-safe. Of several bars the first is shown."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._bar = ""
        self._at_start = True
        self._ended = False

    def write(self, text: str) -> None:
        """Text that may end within a line."""
        with self._lock:
            self._erase()
            self._stream.write(text)
            self._at_start = text.endswith("\n") or (not text and self._at_start)
            self._draw()
            self._stream.flush()

    def show(self, bars: Sequence[str]) -> None:
        """Shows the first bar from now on; none without bars, nor after ``end``."""
        with self._lock:
            if self._ended:
                return
            self._erase()
            more = f" (and {len(bars) - 1} more)" if len(bars) > 1 else ""
            self._bar = f"{bars[0]}{more}" if bars else ""
            self._draw()
            self._stream.flush()

    def end(self) -> None:
        """Takes the bar away for good: an answer that is still on its way may have one."""
        with self._lock:
            self._erase()
            self._bar, self._ended = "", True
            self._stream.flush()

    def _erase(self) -> None:
        if self._bar and self._at_start:
            self._stream.write(_ERASE)

    def _draw(self) -> None:
        # The terminal may have another size now. A line that is too long could not be erased.
        if self._bar and self._at_start:
            self._stream.write(self._bar[: shutil.get_terminal_size().columns - 1])


@contextmanager
def bars_shown(call: Call, id_: str, *, several: bool, learner: str | None) -> Generator[BarLine | None]:
    """Within it, bars are read every second and drawn on the terminal; None where stdout is none."""
    if not call.for_people or not sys.stdout.isatty():
        yield None
        return
    line, over, client = BarLine(sys.stdout), threading.Event(), call.client

    def poll() -> None:
        while not over.wait(_POLL_S):
            try:
                progress = client.jobs.progress(id_)
            except (WeftError, RuntimeError):  # shown only while they are known; RuntimeError: the client was closed
                continue
            line.show(bar_texts(progress, several=several, learner=learner))

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield line
    finally:
        over.set()
        thread.join(_POLL_S)
        line.end()
