"""When each byte of a source was first seen, so that a line sent or stored again has the time it had before.

A file of fixed-size records (bytes seen, Unix ms). A growth within ``GAP_MS`` of the last record extends it, for people
the same instant; and the gap grows once there are many, so that a week of chatter stays within some megabytes.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from bisect import bisect_left
from pathlib import Path
from typing import Final

GAP_MS: Final = 40
_COARSE_AFTER: Final = 100_000
_COARSE_GAP_MS: Final = 1_000
_RECORD: Final = 16


class TimeIndex:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        whole = os.fstat(self._fd).st_size // _RECORD * _RECORD
        both = array("Q")
        both.frombytes(os.pread(self._fd, whole, 0))
        self._seen, self._times = both[0::2], both[1::2]

    def saw(self, size: int, now_ms: int) -> None:
        """The source has ``size`` bytes now. In the file when this returns (unless the disk is full)."""
        if self._seen:
            if size <= self._seen[-1]:
                return
            gap = GAP_MS if len(self._seen) < _COARSE_AFTER else _COARSE_GAP_MS
            if now_ms - self._times[-1] < gap:  # or a clock that was set back: times of one source never fall
                self._seen[-1] = size
                self._write(size, self._times[-1])
                return
        self._seen.append(size)
        self._times.append(now_ms)
        self._write(size, now_ms)

    def at(self, end: int) -> int:
        """When the source had its first ``end`` bytes; of more than it was seen to have, the latest time there is."""
        if not self._seen:
            return 0
        return self._times[min(bisect_left(self._seen, end), len(self._times) - 1)]

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, size: int, time_ms: int) -> None:
        with contextlib.suppress(OSError):  # a full disk: the time is known to this process at least
            os.pwrite(self._fd, array("Q", (size, time_ms)).tobytes(), (len(self._seen) - 1) * _RECORD)
