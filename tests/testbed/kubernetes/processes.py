"""Processes by pid and start time, so that a record of a process that has ended never hits another one."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from tests.waiting import HANG_S

_LOOK_EVERY_S: Final = 0.02


@dataclass(frozen=True)
class Process:
    pid: int
    started: int
    """Clock ticks since boot."""

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """None if there is no such process."""
        stat = _stat(pid)
        return cls(pid, int(stat[19])) if stat else None

    @classmethod
    def read(cls, record: Path) -> Self | None:
        """None if there is no such record."""
        try:
            return cls(**json.loads(record.read_text()))
        except FileNotFoundError:
            return None

    def write(self, record: Path) -> None:
        record.write_text(json.dumps(asdict(self)))

    @property
    def alive(self) -> bool:
        """False for a zombie."""
        stat = _stat(self.pid)
        return stat is not None and int(stat[19]) == self.started and stat[0] not in {"Z", "X"}

    def send(self, number: signal.Signals) -> None:
        """Does nothing if it has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive:
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)

    def kill(self) -> None:
        """Kill -9; returns once it has ended."""
        self.send(signal.SIGKILL)
        wait(lambda: not self.alive, f"process {self.pid} ends")


def host_pid(inside: int, namespace: Path) -> int:
    """Returns the pid outside of the process with pid ``inside`` in a pid namespace (/proc/PID/ns/pid).

    Raises ProcessLookupError if it has ended.
    """
    wanted = namespace.readlink()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                same = (folder / "ns/pid").readlink() == wanted
                status = (folder / "status").read_text() if same else ""
            except OSError:
                continue
            if f"\t{inside}\n" in status.partition("NSpid:")[2].partition("\n")[0] + "\n":
                return int(folder.name)
    raise ProcessLookupError(f"no process {inside} in {namespace}")


def wait(condition: Callable[[], object], what: str, *, within_s: float = HANG_S) -> None:
    """Returns once the condition is true. Raises TimeoutError with ``what`` was waited for."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:.0f} s: {what}")
        time.sleep(_LOOK_EVERY_S)


def _stat(pid: int) -> list[str] | None:
    """The fields after the name: state first, start time at 19 (man 5 proc)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
