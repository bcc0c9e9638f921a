"""Whether a process still does anything: for those who keep processes running, and can start them again.

Who has died is seen at once; who merely stands still (stopped, or waiting for ever on a lock) is not. Every process of
the platform has timers, so that its main thread runs many times a second. One that has not run for a while, and does
not wait for a processor or a disk either, is silent. A busy machine makes nobody silent: who waits for his turn is
runnable. Nor does a machine that slept: looks are counted, not time. Nor a debugger.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final

from services.core.runtime.processes import ProcessIdentity, alive

LOOKS: Final = 4
"""In a row that have seen no sign of life."""
_WAITING: Final = frozenset("RDt")
"""States of one that waits for a processor or a disk, or is being traced."""
_SWITCHES: Final = re.compile(r"ctxt_switches:\s*(\d+)")


async def wait_until_hung(process: ProcessIdentity, *, after_s: float, every_thread: bool = False) -> None:
    """Returns once the process lives and has done nothing for so long; cancel it when it ends.

    ``every_thread``: a sign of life of any thread counts, not only the main one's (programs that are not Python).
    """
    before, quiet = "", 0
    while quiet < LOOKS:
        await asyncio.sleep(after_s / LOOKS)
        now = _trace(process, every_thread=every_thread)
        quiet = quiet + 1 if now and now == before else 0
        before = now


def _trace(process: ProcessIdentity, *, every_thread: bool) -> str:
    """How often its threads have run; empty where it waits for its turn, or is gone."""
    threads = Path(f"/proc/{process.pid}/task")
    counts: list[str] = []
    try:
        for thread in threads.iterdir() if every_thread else [threads / str(process.pid)]:
            text = (thread / "status").read_text(errors="replace")
            state = text.partition("\nState:")[2].lstrip()[:1]
            if state in _WAITING:
                return ""
            counts += [thread.name, *_SWITCHES.findall(text)]
    except OSError:  # a thread, or the process, has just ended
        return ""
    return " ".join(counts) if alive(process) else ""
