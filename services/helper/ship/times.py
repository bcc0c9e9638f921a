"""When each byte of a source was first seen, so that a line that is sent or stored again keeps its time.

A file of fixed-size records (bytes seen, Unix ms). Growth within ``GAP_MS`` of the last record extends that record; for
people it is the same instant. The gap grows once there are many records, so a week of output stays within some
megabytes.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from bisect import bisect_left
from pathlib import Path
from typing import Final

from services.core.runtime.durable_files import FULL

GAP_MS: Final = 40
_COARSE_AFTER: Final = 100_000
_COARSE_GAP_MS: Final = 1_000
_RECORD: Final = 16


class TimeIndex:
    """Reads an existing file; a torn last record is ignored. Without room for a file the times are in memory only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        records = array("Q")
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._fd = -1
        else:
            whole = os.fstat(self._fd).st_size // _RECORD * _RECORD
            records.frombytes(os.pread(self._fd, whole, 0))
        self._sizes, self._times = records[0::2], records[1::2]

    def record(self, size: int, now_ms: int) -> None:
        """Records that the source has ``size`` bytes now. Written when this returns, unless the disk is full."""
        if self._sizes:
            if size <= self._sizes[-1]:
                return
            gap = GAP_MS if len(self._sizes) < _COARSE_AFTER else _COARSE_GAP_MS
            if now_ms - self._times[-1] < gap:  # also after a clock was set back: times of a source never fall
                self._sizes[-1] = size
                self._write(size, self._times[-1])
                return
        self._sizes.append(size)
        self._times.append(now_ms)
        self._write(size, now_ms)

    def time_at(self, end: int) -> int:
        """Unix ms at which the source first had ``end`` bytes. Beyond what was seen: the latest time. Empty: 0."""
        if not self._sizes:
            return 0
        return self._times[min(bisect_left(self._sizes, end), len(self._times) - 1)]

    def close(self) -> None:
        """May be called again: another file may have the descriptor's number by then."""
        fd, self._fd = self._fd, -1
        if fd != -1:
            os.close(fd)

    def remove(self) -> None:
        """Closes and removes the file."""
        self.close()
        self._path.unlink(missing_ok=True)

    def _write(self, size: int, time_ms: int) -> None:
        with contextlib.suppress(OSError):  # a full disk, or no file: this process still has the time in memory
            os.pwrite(self._fd, array("Q", (size, time_ms)).tobytes(), (len(self._sizes) - 1) * _RECORD)
