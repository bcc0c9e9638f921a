"""A command on a pseudo-terminal, as a person sees and uses it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.waiting import HANG_S, eventually

_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]")
_CLEAR = "\x1b[2J"
LEFT_OUT = ("COLUMNS", "LINES", "WEFT_URL", "WEFT_KEY", "WEFT_PROFILE", "WEFT_HOME", "NO_COLOR")
"""Variables that would say something else than the terminal, or lead elsewhere."""


class Screen:
    """Ends the command at the end of the context, if it has not ended."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        columns: int = 80,
        rows: int = 24,
        folder: Path | None = None,
    ) -> None:
        """``environment``: added to that of the test."""
        self._ours, theirs = pty.openpty()
        self.resize(columns, rows)
        inherited = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
        # What a script starts in the background ignores SIGINT, and so would the command; a person's shell does not.
        self.process = subprocess.Popen(
            ["env", "--default-signal=INT", *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            close_fds=True,
            cwd=folder,
            start_new_session=True,
            env={**inherited, "TERM": "xterm-256color", **environment},
        )
        os.close(theirs)
        self._drawn = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(HANG_S)
        os.close(self._ours)

    @property
    def drawn(self) -> str:
        """All that was drawn up to now, control sequences included."""
        return bytes(self._drawn).decode(errors="replace").replace("\r\n", "\n")

    @property
    def text(self) -> str:
        """The same without control sequences."""
        return _CONTROLS.sub("", self.drawn)

    def resize(self, columns: int, rows: int = 24) -> None:
        """Gives the terminal another size. The command gets SIGWINCH, as from a terminal's window."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if hasattr(self, "process"):
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGWINCH)

    def type(self, text: str) -> None:
        """Types the text."""
        os.write(self._ours, text.encode())

    def wait(self, text: str) -> None:
        """Waits until the text was drawn."""
        eventually(lambda: text in self.text or self._has_ended)
        assert text in self.text, self.text

    def wait_cleared(self, times: int, text: str) -> str:
        """Waits until the screen was cleared so often, and the text drawn since. Returns all that was drawn since."""

        def parts() -> list[str]:
            return self.drawn.split(_CLEAR)

        eventually(lambda: (len(parts()) > times and text in _CONTROLS.sub("", parts()[-1])) or self._has_ended)
        assert len(parts()) == times + 1, self.text
        return _CONTROLS.sub("", parts()[-1])

    def end(self) -> int:
        """Waits for the end of the command. Returns its exit code."""
        code = self.process.wait(HANG_S)
        self._reader.join(HANG_S)
        return code

    @property
    def _has_ended(self) -> bool:
        return self.process.poll() is not None and not self._reader.is_alive()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # Linux: the other side is closed
            while chunk := os.read(self._ours, 65_536):
                self._drawn += chunk
