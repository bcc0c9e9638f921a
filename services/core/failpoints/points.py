"""Points at which a process dies or stands still on purpose (docs/adr/0010-failpoints.md). Off in production.

``WEFT_FAILPOINTS=FOLDER`` in a process's environment turns them on, when it starts. Without it nothing of this is even
imported. Nothing comes in from the network: who sets them writes files in that folder, which is its owner's alone.

    FOLDER/armed     what shall happen, a line each, looked at again whenever it changes:  WHEN ACTION POINT
    FOLDER/fired/N   line N (from 0) has happened. Each happens once, in whichever process comes by first
    FOLDER/passed    each point that a process has passed, a line each: the points that there are

A point is a side effect: a call of a port, ``guardian.cluster.do(reserve)``, or a change of the file system, a process
started or signalled, ``node.rename node/*/1``. Nobody lists them: calls are seen by a stand-in for the port
(``services.core.failpoints.calls``), the others by Python's own audit hooks. WHEN is before,
or for calls also done (it took effect, its answer is not used) and answered (until the process waits next). ACTION is
kill (SIGKILL to itself), stop (SIGSTOP) or cut: the call is refused as if the other side or the disk were away.

Standard library only, and a program: it starts a shim under failpoints, which is kept free of them.

    python -I -S failpoints.py FOLDER PROCESS HOME SCRIPT [ARGUMENT...]
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading

TYPE_CHECKING = False  # as in the shim: importing typing would cost as much as all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

VARIABLE = "WEFT_FAILPOINTS"
ACTIONS = ("kill", "stop", "cut")
TIMES = ("before", "done", "answered")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATH_AT = {
    "os.rename": 1, "os.link": 1, "os.symlink": 1, "os.mkdir": 0, "os.remove": 0, "os.rmdir": 0, "os.chmod": 0,
    "os.chown": 0, "os.truncate": 0,
}  # fmt: skip
"""Audit events that change the file system -> which of their arguments says where."""
_CHANGING = [
    (re.compile(r"(?<![0-9a-z])[a-z][0-9a-hjkmnp-tv-z]{22}(?![0-9a-z])"), "*"),
    (re.compile(r"[0-9a-f]{16,}|\d{3,}|(?<=tmp)[0-9a-z_]{8}"), "*"),
]
"""What differs from life to life: ids, digests, pids, temporary names."""


class Failpoints:
    """Of one process. ValueError where the folder is not its owner's alone, or a line of ``armed`` is none."""

    def __init__(self, folder: str | Path, process: str, home: str | Path = "/") -> None:
        self.folder, self._process, self._home = str(folder), process, str(home)
        there = os.stat(self.folder)
        if there.st_uid != os.geteuid() or there.st_mode & 0o077:
            raise ValueError(f"{VARIABLE}: {self.folder} must be a folder of yours that nobody else can enter")
        self._passed = os.open(f"{self.folder}/passed", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._read = (0, 0)
        self._armed: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self._own = threading.local()
        self._off = False

    def passes(self, point: str, when: str = "before") -> bool:
        """Whether what is to be done here must not happen: it is cut. Does not return where the process dies."""
        name = f"{self._process}.{point}"
        if when == "before":
            os.write(self._passed, f"{name}\n".encode())
        for number, action in self._lines().get((when, name), ()):
            if self._first(number):
                if action == "cut":
                    return True
                os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        return False

    def watch_files(self) -> None:
        """From now on, for as long as the process lives; not in children that it forks."""
        sys.addaudithook(self._audited)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._off = True

    def _audited(self, event: str, args: tuple[Any, ...]) -> None:
        """Python is about to do something."""
        if self._off or getattr(self._own, "busy", False):
            return
        at = _PATH_AT.get(event)
        if at is not None:
            what, where = event.removeprefix("os."), args[at]
        elif event == "open" and isinstance(args[2], int) and args[2] & _WRITES:
            what, where = "open", args[0]
        elif event == "subprocess.Popen":
            what, where = "spawn", " ".join(_words(args[1]))
        elif event in {"os.fork", "os.kill"}:
            what, where = event.removeprefix("os."), ""
        else:
            return
        self._own.busy = True  # what is done in here is no point
        try:
            place = _place(where, self._home, self.folder)
            if place is not None and self.passes(f"{what} {place}".strip()):
                raise OSError(5, "a failpoint has cut this", str(where))
        finally:
            self._own.busy = False

    def _lines(self) -> dict[tuple[str, str], list[tuple[int, str]]]:
        """What is armed, by when and where."""
        path = f"{self.folder}/armed"
        try:
            seen = os.stat(path)
        except FileNotFoundError:
            return {}
        if self._read != (seen.st_ino, seen.st_mtime_ns):
            self._read = (seen.st_ino, seen.st_mtime_ns)
            self._armed = {}
            with open(path, encoding="utf-8") as file:
                for number, line in enumerate(file):
                    when, action, point = read_line(line)
                    self._armed.setdefault((when, point), []).append((number, action))
        return self._armed

    def _first(self, number: int) -> bool:
        os.makedirs(f"{self.folder}/fired", mode=0o700, exist_ok=True)
        try:
            os.close(os.open(f"{self.folder}/fired/{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True


def under_failpoints(pid: int) -> bool:
    """Whether this process was started with failpoints on. False of one that is gone, or not ours to look at."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(each.startswith(f"{VARIABLE}=".encode()) for each in file.read().split(b"\0"))
    except OSError:
        return False


def read_line(line: str) -> tuple[str, str, str]:
    """(when, action, point). ValueError where it is none."""
    when, _, rest = line.strip().partition(" ")
    action, _, point = rest.partition(" ")
    if when not in TIMES or action not in ACTIONS or not point:
        raise ValueError(f"'before|done|answered kill|stop|cut POINT' is expected in {VARIABLE}/armed, not {line!r}")
    return when, action, point


def _place(where: object, home: str, own: str) -> str | None:
    """A path as it is in each life, below the home where it lies there; None for devices, caches and our ``own``."""
    if isinstance(where, int):
        return ""
    text = os.fsdecode(where) if isinstance(where, bytes | str | os.PathLike) else str(where)
    if text.startswith(("/dev/", own)) or "__pycache__" in text or text.endswith(".pyc"):
        return None
    text = text.removeprefix(f"{home.rstrip('/')}/")
    for pattern, instead in _CHANGING:
        text = pattern.sub(instead, text)
    return text


def _words(args: Any) -> list[str]:
    """What a process is started with, but for the interpreter and its options."""
    words = [os.fsdecode(word) for word in args] if isinstance(args, list | tuple) else [str(args)]
    return [os.path.basename(word.rstrip("/")) for word in words[1:] if not word.startswith("-")]


def main(argv: list[str], run: Callable[[str], object]) -> None:
    """A script under failpoints."""
    folder, process, home, script = argv[:4]
    Failpoints(folder, process, home).watch_files()
    sys.argv = [script, *argv[4:]]
    run(script)


if __name__ == "__main__":
    import runpy

    main(sys.argv[1:], lambda script: runpy.run_path(script, run_name="__main__"))
