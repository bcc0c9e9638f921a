"""How the end of a job becomes an exit code, and a line."""

from __future__ import annotations

from typing import Final

from weft._cli.output import width
from weft._cli.text import one_line, wrapped

FAILED: Final = 100
NOT_FINISHED: Final = 101
STOPPED: Final = 103

_CODES: Final = {"COMPLETED": 0, "FAILED": FAILED, "KILLED": STOPPED, "HALTED": STOPPED}


def exit_code(status: str) -> int:
    """The exit code of a command that has seen a job to its end; NOT_FINISHED for a state that is no end."""
    return _CODES.get(status, NOT_FINISHED)


def worst(codes: list[int]) -> int:
    """One exit code for several jobs: what most needs to be known."""
    order = [FAILED, STOPPED, NOT_FINISHED]
    return next((code for code in order if code in codes), max(codes, default=0))


def end_message(name: str, status: str, reason: str, message: str) -> str:
    """A job's end in a line, e.g. ``digits FAILED (ExitCode): worker-0 ended with exit code 3``."""
    why = f" ({reason})" if reason else ""
    what = f": {' '.join(message.split())}" if message else ""
    return wrapped(one_line(f"{name} {status}{why}{what}"), width())
