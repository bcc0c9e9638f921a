"""What `weft explain` prints: the state in a sentence, the cause, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft._cli.columns import cut
from weft._cli.text import one_line, plain, wrapped

_INDENT = "    "


def explanation(answer: Mapping[str, Any], name: str, columns: int) -> str:
    """The answer in lines of at most ``columns`` characters. ``name``: of the job, as the user typed it."""
    lines = [f"{name} {answer['summary']}"]
    lines += [f"  cause: {one_line(answer['cause'])}"] if answer.get("cause") else []
    lines += [f"  - {hint}" for hint in answer.get("hints") or ()]
    return wrapped(plain("\n".join(lines)), columns, indent=_INDENT)


def startup_text(steps: list[str], columns: int) -> str:
    """The rows of the start-up under their title, each cut to ``columns``; empty without steps."""
    if not steps:
        return ""
    return "\n".join(["  start-up:", *(cut(f"{_INDENT}{step}", columns) for step in steps)])
