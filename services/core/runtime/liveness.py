"""Detects hung processes, by the context-switch counters of their threads. For supervisors, which restart them.

A process that has died is noticed at once; one that is stopped, or waits for ever on a lock, is not. Every process of
the platform has timers, so its main thread runs at least once a second. A process counts as hung when its counters did
not change over several samples and it was not waiting for a processor or a disk. So a busy machine does not make a
process look hung (it is runnable), nor does suspension (samples are counted, not time), nor a debugger (it is being
traced).
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final

from services.core.runtime.processes import ProcessIdentity, alive

SAMPLES: Final = 4
"""A process is hung after so many samples in a row without a change."""
_NOT_HUNG: Final = frozenset("RDt")
"""States in /proc of a process that waits for a processor or a disk, or is being traced."""
_SWITCHES: Final = re.compile(r"ctxt_switches:\s*(\d+)")


async def wait_until_hung(process: ProcessIdentity, *, after_s: float, every_thread: bool = False) -> None:
    """Returns once the process is alive and has been hung for ``after_s`` seconds.

    Never returns for a process that has ended: the caller cancels it then. ``every_thread``: activity of any thread
    counts, not only of the main thread; for programs that are not Python.
    """
    before, unchanged = "", 0
    while unchanged < SAMPLES:
        await asyncio.sleep(after_s / SAMPLES)
        now = _sample(process, every_thread=every_thread)
        # Only then, because it costs more than the sample. Another process may have the pid of one that has ended.
        unchanged = unchanged + 1 if now and now == before and alive(process) else 0
        before = now


def _sample(process: ProcessIdentity, *, every_thread: bool) -> str:
    """Returns the context-switch counters of its threads; empty where the process is surely not hung, or is gone."""
    threads = Path(f"/proc/{process.pid}/task")
    counters: list[str] = []
    try:
        for thread in threads.iterdir() if every_thread else [threads / str(process.pid)]:
            text = (thread / "status").read_text(errors="replace")
            state = text.partition("\nState:")[2].lstrip()[:1]
            if state in _NOT_HUNG:
                return ""
            counters += [thread.name, *_SWITCHES.findall(text)]
    except OSError:  # a thread, or the process, has just ended
        return ""
    return " ".join(counters)
