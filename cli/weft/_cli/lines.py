"""How a log line looks: harmless to the terminal, with its learner in front where there are several."""

from __future__ import annotations

from weft._cli.text import local_time, plain
from weft._records import LogLine


class LineWriter:
    """Turns lines into text. Parts of one long line become one line again, unless another learner speaks between."""

    def __init__(self, *, several: bool, timestamps: bool = False) -> None:
        self.several = several
        """Lines begin with their learner."""
        self._timestamps = timestamps
        self._open: tuple[str, int, str] | None = None

    def text(self, line: LogLine) -> str:
        """What to write, newlines included."""
        origin = (line.role, line.rank, line.stream)
        before = "\n" if self._open not in {None, origin} else ""
        prefix = "" if self._open == origin else self._prefix(line)
        self._open = origin if line.partial else None
        return f"{before}{prefix}{plain(line.text)}{'' if line.partial else chr(10)}"

    def _prefix(self, line: LogLine) -> str:
        time = f"{local_time(line.time)} " if self._timestamps else ""
        return time + (f"{line.role}-{line.rank} | " if self.several else "")
