"""The command line `weft`. Nothing here is imported by the SDK."""

from __future__ import annotations

import gc
import io
import sys


def program() -> None:
    """Run the command of this process's arguments, and leave with its exit code."""
    # Imports make many objects and hardly any garbage. Python would look for garbage after every 700 new objects, and
    # in all modules at the end: a fifth of a short command's time.
    gc.set_threshold(50_000, 20, 20)
    from weft._cli.main import run

    if isinstance(sys.stdout, io.TextIOWrapper):  # it is None where it is closed
        sys.stdout.reconfigure(errors="backslashreplace")  # of a terminal without UTF-8; stderr has it by default
    code = run()
    gc.freeze()
    sys.exit(code)
