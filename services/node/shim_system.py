"""Files, processes and control groups for the shim and its child: the standard library only, for a fast start."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time

TYPE_CHECKING = False  # type checkers take it as true; importing typing would cost as much as all of the above
if TYPE_CHECKING:
    from typing import Any


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


def read_text(path: str) -> str:
    """The contents; bytes that are not UTF-8 are replaced."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def read_json(path: str) -> dict[str, Any]:
    """The document; empty if there is none, or if it is damaged: then it neither starts nor stops the learner."""
    try:
        document: Any = json.loads(read_text(path))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def write_durably(path: str, content: bytes) -> None:
    """Overwrites in place, so that reserved space is used. OSError if the disk is full."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        if os.write(fd, content) != len(content):
            raise OSError(28, "no space left", path)  # ENOSPC: a short write reports it only at the next write
        os.fsync(fd)
    finally:
        os.close(fd)


def rename_durably(path: str, to: str) -> None:
    """``os.rename`` within one folder, which is fsynced."""
    os.rename(path, to)
    fd = os.open(os.path.dirname(to), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_json(path: str, document: dict[str, Any]) -> None:
    """Durable when it returns; whole or absent after a crash at any point."""
    temporary = f"{path}.{os.getpid()}.tmp"
    write_durably(temporary, json.dumps({"schema": 1, **document}).encode())
    rename_durably(temporary, path)


def stat_fields(pid: int) -> list[str]:
    """The fields of ``/proc/<pid>/stat`` from the third (state) on: the second may contain any character."""
    return read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def identity(pid: int) -> dict[str, Any]:
    """Pid, start time and boot: together they never name a second process."""
    boot = read_text("/proc/sys/kernel/random/boot_id").strip()
    return {"pid": pid, "start_time": int(stat_fields(pid)[19]), "boot_id": boot}


def descendants() -> list[int]:
    """The pids of all processes below the shim, in any session."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                children.setdefault(int(stat_fields(int(name))[1]), []).append(int(name))
            except (OSError, IndexError):
                continue  # it has ended meanwhile
    pids: list[int] = []
    front = [os.getpid()]
    while front:
        below = children.get(front.pop(), [])
        pids += below
        front += below
    return pids


def send(pids: list[int], sign: int) -> None:
    """Sends the signal to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, sign)
        except ProcessLookupError:
            continue


def is_sandbox(pid: int) -> bool:
    """True if the process is bubblewrap itself, not a program in it; True also if it has ended."""
    try:
        return read_text(f"/proc/{pid}/comm") == "bwrap\n"
    except OSError:
        return True


def unwrap(status: int) -> int:
    """The wait status of the program in the sandbox: bubblewrap reports an end by signal n as exit code 128 + n."""
    code = status >> 8 if os.WIFEXITED(status) else 0
    return code - 128 if 128 < code < 128 + signal.NSIG else status


def oom_kills(groups: list[str]) -> int:
    """The number of out-of-memory kills in the control groups; without groups on the whole machine."""
    files = [f"{group}/{name}" for group in groups for name in ("memory.events", "memory.oom_control")]
    for path in filter(os.path.exists, files or ["/proc/vmstat"]):
        for line in read_text(path).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def kill_groups(groups: list[str]) -> None:
    """Kills all processes of the groups at once, so that none escapes by forking."""
    for group in groups:
        for name, before, after in (("cgroup.kill", "", "1"), ("freezer.state", "FROZEN", "THAWED")):
            path = f"{group}/{name}"
            if not os.path.exists(path):
                continue
            if before:
                write_word(path, before)
                for pid in read_text(f"{group}/cgroup.procs").split():
                    try:
                        os.kill(int(pid), signal.SIGKILL)
                    except ProcessLookupError:
                        continue
            write_word(path, after)


def write_word(path: str, word: str) -> None:
    """Writes to a file of the kernel."""
    with open(path, "w", encoding="ascii") as file:
        file.write(word)


def call(name: str, *arguments: Any) -> None:
    """Calls a function of the C library that returns 0. Raises OSError."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def open_below(top: str, *parts: str) -> int:
    """A descriptor of the folder ``top/parts...``. No link below ``top`` is followed."""
    folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for part in parts:
        below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        os.close(folder)
        folder = below
    return folder
