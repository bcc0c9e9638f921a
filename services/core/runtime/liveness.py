"""Detects hung processes, by the context-switch counters of their threads. For supervisors, which restart them.

A process that has died is noticed at once; one that is stopped, or waits for ever on a lock, is not. Every process of
the platform has timers, so its main thread runs at least once a second. A process counts as hung when its counters did
not change over several samples and it was not waiting for a processor or a disk. So a busy machine does not make a
process look hung (it is runnable), nor does suspension (samples are counted, not time), nor a debugger (it is being
traced).
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from services.core.runtime.processes import ProcessIdentity, alive

SAMPLES: Final = 4
"""A process is hung after so many samples in a row without a change."""
_NOT_HUNG: Final = frozenset((b"R", b"D", b"t"))
"""States in /proc of a process that waits for a processor or a disk, or is being traced."""
_STATE: Final = b"\nState:\t"
_SWITCHES: Final = b"\nvoluntary_ctxt_switches:"
"""Before the counters, which are the last lines."""
_STATUS_BYTES: Final = 2**14
"""More than a status has: it grows with the number of processors."""


async def wait_until_hung(process: ProcessIdentity, *, after_s: float, every_thread: bool = False) -> None:
    """Returns once the process is alive and has been hung for ``after_s`` seconds.

    Never returns for a process that has ended: the caller cancels it then. ``every_thread``: activity of any thread
    counts, not only of the main thread; for programs that are not Python.
    """
    before, unchanged = b"", 0
    while unchanged < SAMPLES:
        await asyncio.sleep(after_s / SAMPLES)
        now = _sample(process, every_thread=every_thread)
        # Only then, because it costs more than the sample. Another process may have the pid of one that has ended.
        unchanged = unchanged + 1 if now and now == before and alive(process) else 0
        before = now


def _sample(process: ProcessIdentity, *, every_thread: bool) -> bytes:
    """Returns the context-switch counters of its threads; empty where the process is surely not hung, or is gone.

    A supervisor takes some of them a second for each of its processes, for days: so files are read the cheapest way.
    """
    threads = f"/proc/{process.pid}/task"
    counters = b""
    try:
        for thread in os.listdir(threads) if every_thread else [str(process.pid)]:  # noqa: PTH208 - see above
            status = _read(f"{threads}/{thread}/status")
            if status.partition(_STATE)[2][:1] in _NOT_HUNG:
                return b""
            counters += thread.encode() + status.partition(_SWITCHES)[2]
    except OSError:  # a thread, or the process, has just ended
        return b""
    return counters


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _STATUS_BYTES)
    finally:
        os.close(fd)
