"""Failpoints: points at which a process kills or stops itself, for tests (docs/adr/0010-failpoints.md).

They are off in production. ``WEFT_FAILPOINTS=FOLDER`` in a process's environment turns them on at its start; without it
this module is not imported. They are set by files in that folder, which must be private to its owner, never over the
network.

    FOLDER/armed     one line for each action:  WHEN ACTION POINT. Read again when it changes
    FOLDER/fired/N   exists when line N (from 0) has fired. Each fires once, in the first process that passes its point
    FOLDER/passed    one line for each point that a process has passed

A point is a side effect: a call of a port, e.g. ``guardian.cluster.do(reserve)``, or a change of the file system, a
start of a process or a signal, e.g. ``node.rename node/*/1``. There is no list of points: calls are intercepted at the
port (``services.core.failpoints.calls``), the others by Python's audit hooks. WHEN is ``before``, or, for calls only,
``done`` (it took effect, the caller does not get the answer) or ``answered`` (the caller got the answer and ran until
it waits next). ACTION is ``kill`` (SIGKILL to itself), ``stop`` (SIGSTOP) or ``cut`` (the call fails as if the server
or the disk were away).

Standard library only, and also a program, which runs a script under failpoints: the shim itself has no code for them.

    python -I -S failpoints.py FOLDER PROCESS HOME SCRIPT [ARGUMENT...]
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading

TYPE_CHECKING = False  # as in the shim: importing typing would take as long as all other imports
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

VARIABLE = "WEFT_FAILPOINTS"
ACTIONS = ("kill", "stop", "cut")
TIMES = ("before", "done", "answered")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATH_AT = {
    "os.rename": 1,
    "os.link": 1,
    "os.symlink": 1,
    "os.mkdir": 0,
    "os.remove": 0,
    "os.rmdir": 0,
    "os.chmod": 0,
    "os.chown": 0,
    "os.truncate": 0,
}
"""Audit events that change the file system -> index of the argument that is the path."""
_VARIABLE_PARTS = [
    (re.compile(r"(?<![0-9a-z])[a-z][0-9a-hjkmnp-tv-z]{22}(?![0-9a-z])"), "*"),
    (re.compile(r"[0-9a-f]{16,}|\d{3,}|(?<=tmp)[0-9a-z_]{8}"), "*"),
]
"""Parts of names that differ between runs (ids, digests, pids, temporary names) -> their replacement."""


class Failpoints:
    """The failpoints of one process."""

    def __init__(self, folder: str | Path, process: str, home: str | Path = "/") -> None:
        """Raises ValueError where others than the owner can enter ``folder``.

        ``process``: its name, the first part of each point. ``home``: paths below it are named relative to it.
        """
        self.folder, self._process, self._home = str(folder), process, str(home)
        status = os.stat(self.folder)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ValueError(f"{VARIABLE}: {self.folder} must be a folder of yours that nobody else can enter")
        self._passed = os.open(f"{self.folder}/passed", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._version = (0, 0)
        self._armed: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self._thread = threading.local()
        self._off = False

    def passes(self, point: str, when: str = "before") -> bool:
        """Carries out what is armed at this point. Returns True where the side effect must be cut.

        Does not return where the process kills itself. Raises ValueError for a malformed line of ``armed``.
        """
        name = f"{self._process}.{point}"
        if when == "before":
            os.write(self._passed, f"{name}\n".encode())
        for number, action in self._read_armed().get((when, name), ()):
            if self._fire_first(number):
                if action == "cut":
                    return True
                os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        return False

    def watch_files(self) -> None:
        """Makes each change of the file system a point, until the process ends; not in children that it forks."""
        sys.addaudithook(self._audit)
        os.register_at_fork(after_in_child=self._turn_off)

    def _turn_off(self) -> None:
        self._off = True

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Called by Python before it does what ``event`` names. Raises OSError to cut it."""
        if self._off or getattr(self._thread, "inside", False):
            return
        index = _PATH_AT.get(event)
        if index is not None:
            action, target = event.removeprefix("os."), args[index]
        elif event == "open" and isinstance(args[2], int) and args[2] & _WRITES:
            action, target = "open", args[0]
        elif event == "subprocess.Popen":
            action, target = "spawn", " ".join(" ".join(_command_words(args[1])).split())  # a point is one line
        elif event in {"os.fork", "os.kill"}:
            action, target = event.removeprefix("os."), ""
        else:
            return
        self._thread.inside = True  # the file operations of this method are no points
        try:
            path = _stable_path(target, self._home, self.folder)
            if path is not None and self.passes(f"{action} {path}".strip()):
                raise OSError(5, "a failpoint has cut this", str(target))
        finally:
            self._thread.inside = False

    def _read_armed(self) -> dict[tuple[str, str], list[tuple[int, str]]]:
        """Returns (when, point) -> [(line number, action)], read again where the file has changed."""
        path = f"{self.folder}/armed"
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return {}
        if self._version != (status.st_ino, status.st_mtime_ns):
            self._version = (status.st_ino, status.st_mtime_ns)
            self._armed = {}
            with open(path, encoding="utf-8") as file:
                for number, line in enumerate(file):
                    when, action, point = read_line(line)
                    self._armed.setdefault((when, point), []).append((number, action))
        return self._armed

    def _fire_first(self, number: int) -> bool:
        """Marks a line as fired. Returns False where another process did so before."""
        os.makedirs(f"{self.folder}/fired", mode=0o700, exist_ok=True)
        try:
            os.close(os.open(f"{self.folder}/fired/{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True


def under_failpoints(pid: int) -> bool:
    """Whether a process was started with failpoints on. False where it has ended or its environment is not readable."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(variable.startswith(f"{VARIABLE}=".encode()) for variable in file.read().split(b"\0"))
    except OSError:
        return False


def read_line(line: str) -> tuple[str, str, str]:
    """Returns (when, action, point) of a line of ``armed``. Raises ValueError for a malformed one."""
    when, _, rest = line.strip().partition(" ")
    action, _, point = rest.partition(" ")
    if when not in TIMES or action not in ACTIONS or not point:
        raise ValueError(f"'before|done|answered kill|stop|cut POINT' is expected in {VARIABLE}/armed, not {line!r}")
    return when, action, point


def _stable_path(target: object, home: str, folder: str) -> str | None:
    """Returns a path without the parts that differ between runs, relative to ``home`` where it is below.

    Empty for a file descriptor. None for paths that are no points: devices, byte code, the failpoints' ``folder``.
    """
    if isinstance(target, int):
        return ""
    text = os.fsdecode(target) if isinstance(target, bytes | str | os.PathLike) else str(target)
    if text.startswith(("/dev/", folder)) or "__pycache__" in text or text.endswith(".pyc"):
        return None
    text = text.removeprefix(f"{home.rstrip('/')}/")
    for pattern, replacement in _VARIABLE_PARTS:
        text = pattern.sub(replacement, text)
    return text


def _command_words(args: Any) -> list[str]:
    """Returns the base names of a command's words, without the program and options."""
    words = [os.fsdecode(word) for word in args] if isinstance(args, list | tuple) else [str(args)]
    return [os.path.basename(word.rstrip("/")) for word in words[1:] if not word.startswith("-")]


def main(argv: list[str], run: Callable[[str], object]) -> None:
    """Runs a script under failpoints. ``argv``: folder, process, home, script, and the script's arguments."""
    folder, process, home, script = argv[:4]
    Failpoints(folder, process, home).watch_files()
    sys.argv = [script, *argv[4:]]
    run(script)


if __name__ == "__main__":
    import runpy

    main(sys.argv[1:], lambda script: runpy.run_path(script, run_name="__main__"))
