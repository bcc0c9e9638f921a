"""Identifies processes by pid, start time and boot id, because the kernel uses pids again.

Nothing is signalled or adopted by its pid alone. Linux only: reads /proc.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from services.core.domain.codec import MALFORMED
from services.core.runtime.durable_files import read_json, write_json

_USERS_MODULES: Final = frozenset({"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"})
ENDED: Final = frozenset({b"Z", b"X"})
"""States of processes that have ended, and whose parent has not waited for them."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process; no other process ever has an equal identity."""

    pid: int
    start_time: int
    """Clock ticks since boot: field 22 of /proc/<pid>/stat."""
    boot_id: str


def platform_environment() -> dict[str, str]:
    """The environment for processes of the platform: without variables by which Python loads the user's own modules."""
    return {name: value for name, value in os.environ.items() if name not in _USERS_MODULES}


def boot_id() -> str:
    """Returns the id of the machine's current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def stat_fields(pid: int | str, proc: Path | str = "/proc") -> list[bytes]:
    """The fields of /proc/<pid>/stat from the state on: the name before it may contain anything. Raises OSError."""
    with open(f"{proc}/{pid}/stat", "rb") as file:  # noqa: PTH123 - half the cost of a Path, for each process there is
        return file.read().rpartition(b")")[2].split()


def identify(pid: int) -> ProcessIdentity | None:
    """Returns the identity of the live process of this pid; None where there is none, or a zombie."""
    try:
        fields = stat_fields(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ENDED else ProcessIdentity(pid, int(fields[19]), boot_id())


def alive(process: ProcessIdentity) -> bool:
    """Whether this process runs."""
    return identify(process.pid) == process


def send_signal(process: ProcessIdentity, sign: signal.Signals) -> bool:
    """Sends a signal to this process, never to another one with its pid. Returns whether the process was alive."""
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
    """Blocks until the process has ended, for ``timeout_s`` seconds at most. Returns whether it has ended."""
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
    """Writes the identity to a file, readable by all. Readers see the old or the new one. Raises NoSpace."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(process), durable=False, mode=0o644)


def read_live_process(path: Path) -> ProcessIdentity | None:
    """Returns the process whose identity is in the file; None where it has ended or the file cannot be read."""
    with contextlib.suppress(OSError, *MALFORMED):
        document = read_json(path)
        if document is not None:
            process = ProcessIdentity(int(document["pid"]), int(document["start_time"]), str(document["boot_id"]))
            return process if alive(process) else None
    return None
