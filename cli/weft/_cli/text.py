"""Words and numbers for people, without control sequences.

Log lines, names and messages come from others: `plain` shows control characters instead of sending them, so that no
output can move the cursor, change the title, hide text or type into the shell.
"""

from __future__ import annotations

import math
import os
import re
import textwrap
from datetime import UTC, datetime
from typing import Any, TextIO

# C0 but tab and newline, DEL, C1, other ends of lines, and what turns the direction of text or hides it.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def plain(text: object) -> str:
    """Text that a terminal only shows. Tabs and newlines stay."""
    return UNSAFE.sub(_shown, str(text))


def one_line(text: object) -> str:
    """As `plain`, for a place that has a single line."""
    return plain(text).replace("\n", " ").replace("\t", " ")


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def wrapped(text: str, columns: int, *, indent: str = "  ") -> str:
    """Wraps text between words. Continuation lines are indented."""
    return "\n".join(
        part
        for line in text.split("\n")
        for part in textwrap.wrap(
            line,
            columns,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
        or [""]
    )


def fitted(text: str, stream: TextIO, *, indent: str = "  ") -> str:
    """As `wrapped`, to the terminal that ``stream`` is; as it is where that is none, so that grep finds it whole."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return text
    return wrapped(text, max(20, columns), indent=indent)


def span(seconds: float) -> str:
    """A length of time in at most two units: 4.2s, 38s, 2m05s, 3h12m, 4d06h."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def ago(time: datetime | None, now: datetime | None = None) -> str:
    """How long ago; "-" where there is no time."""
    if time is None:
        return "-"
    return span(((now or datetime.now(UTC)) - time).total_seconds())


def size(count: float) -> str:
    """Bytes in decimal units: 512 B, 34 kB, 1.2 GB."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        if count < 999.5 or unit == "TB":
            shown = f"{count:.1f}".removesuffix(".0") if count < 9.95 else f"{count:.0f}"
            return f"{shown} {unit}"
    raise AssertionError("unreachable")


def bytes_of(amount: str | float) -> float:
    """The bytes of a size as the API writes it in a spec: a number, or text such as 64MB or 1GiB."""
    text = str(amount).strip().lower().removesuffix("b")
    base = 1024 if text.endswith("i") else 1000
    text = text.removesuffix("i")
    power = "kmgtpe".find(text[-1:]) + 1 if text[-1:].isalpha() else 0
    return float(text.rstrip("kmgtpe")) * float(base) ** power


def number(value: float) -> str:
    """A metric's value in at most seven characters or so: 0.3125, 12.5, 1.2e-05, NaN."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"


def amount(value: float) -> str:
    """A count that may be a fraction: 2, 0.5."""
    return f"{value:g}"


def count(number: float, of: str) -> str:
    """A count with its noun: 1 file, 2 files, 0.5 GPUs."""
    return f"{amount(number)} {of}{'' if number == 1 else 's'}"


def amounts(of: dict[str, Any]) -> str:
    """CPUs, memory and GPUs in words."""
    parts = [count(of.get("cpus", 0), "CPU"), size(of.get("memory", 0))]
    return ", ".join([*parts, count(of["gpus"], "GPU")] if of.get("gpus") else parts)


def local_time(time: datetime, *, with_date: bool = True) -> str:
    """In the reader's time zone."""
    return f"{time.astimezone():%Y-%m-%d %H:%M:%S}" if with_date else f"{time.astimezone():%H:%M:%S}"
