"""What every attack uses. The modules of this folder run inside a learner: they import the standard library only.

An attack knows more than a real one could: ``intel()`` holds addresses, process ids and paths of the platform and of
its victim. It prints a line that begins with ``BREACH`` for each thing that it could do and should not, and prints
whatever it could read: the auditor searches the output for canaries.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

BREACH: Final = "BREACH "
FORGED: Final = "forged-by-a-learner"
"""In every file that a learner writes in place of the platform's."""
OVER: Final = "ATTACK OVER"
"""The last line: without it an attack has not been tried to its end."""
_SHOWN: Final = 4_000


def intel() -> dict[str, Any]:
    """What the attacker knows, as ``tests.hostile.arena.Arena.intel`` made it."""
    return dict(json.loads(Path(__file__).with_name("intel.json").read_text()))


def breach(text: str) -> None:
    """Reports one thing that the attacker could do."""
    say(f"{BREACH}{text}")


def say(text: object) -> None:
    # backslashreplace: what was read may be anything, and must not end the attack.
    sys.stdout.buffer.write(f"{text}\n".encode(errors="backslashreplace"))
    sys.stdout.flush()


def must_fail(what: str, action: Callable[[], object]) -> None:
    """Reports a breach if the action is not refused."""
    if tried(what, action):
        breach(what)


def tried(what: str, action: Callable[[], object]) -> bool:
    """True if the action was not refused. In a sandbox a path may be another file than outside: the auditor looks."""
    try:
        value = action()
    except (OSError, ValueError) as error:  # ValueError: a limit that may not be raised
        say(f"refused: {what}: {error}")
        return False
    say(f"done: {what}: {str(value)[:200]}")
    return True


def show(path: str | Path) -> None:
    """Prints the content of a file, or the names in a folder, as far as they can be read."""
    try:
        content = sorted(os.listdir(path)) if os.path.isdir(path) else _content(path)
    except OSError as error:
        say(f"refused: {path}: {error}")
    else:
        say(f"read {path}: {content!r}")


def _content(path: str | Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(descriptor, _SHOWN).decode("latin-1")
    finally:
        os.close(descriptor)


def folder(name: str) -> Path:
    """One of the learner's own folders: RESULT_DIR, CHECKPOINT_DIR, LOG_DIR, JOB_STATE_DIR, TMPDIR, HOME."""
    return Path(os.environ[name])


def in_child(action: Callable[[], object]) -> int:
    """Runs it in a child process and returns its wait status: the attack itself goes on whatever happens to it."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]


def detached(action: Callable[[], object]) -> None:
    """Runs it in a daemon: forked twice, in a session of its own, with no descriptor and no variable of the learner."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    try:
        action()
    finally:
        os._exit(0)
