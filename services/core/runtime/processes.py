"""Who a process is: a pid alone is not enough, for pids come back.

A pid, its start time and the boot it belongs to name one process for ever; nothing is signalled or adopted by pid
alone.
Linux only, read from /proc.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    pid: int
    start_time: int
    """Field 22 of /proc/<pid>/stat: clock ticks since boot."""
    boot_id: str


def boot_id() -> str:
    """Of the machine's current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> ProcessIdentity | None:
    """The living process of this pid; None where there is none, or only its corpse."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may contain anything
    return None if fields[0] in "ZX" else ProcessIdentity(pid, int(fields[19]), boot_id())


def alive(process: ProcessIdentity) -> bool:
    """Whether exactly this process still runs."""
    return identify(process.pid) == process


def send_signal(process: ProcessIdentity, sign: signal.Signals) -> bool:
    """Signals exactly this process, never another that got its pid; whether it was there."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(process):
            return False
        signal.pidfd_send_signal(handle, sign)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def wait_gone(process: ProcessIdentity, timeout_s: float) -> bool:
    """Whether it ended within so many seconds. Blocks; costs nothing while waiting."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if not alive(process):
            return True
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)


def write_process_file(path: Path, process: ProcessIdentity) -> None:
    """Atomically; a reader sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"schema": 1, **asdict(process)}))
    temporary.replace(path)


def read_live_process(path: Path) -> ProcessIdentity | None:
    """The process noted in the file, if it still lives."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        noted = json.loads(path.read_text())
        process = ProcessIdentity(int(noted["pid"]), int(noted["start_time"]), str(noted["boot_id"]))
        return process if alive(process) else None
    return None
