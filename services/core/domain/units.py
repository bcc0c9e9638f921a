"""Parses and formats quantities: durations (``2h``) in milliseconds and sizes (``16Gb``, ``300MiB``) in bytes.

Formatting is exact: a formatted quantity parses to the same integer. So a stored spec keeps the values of the
submitted one.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_DURATION_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_PRINT_BYTES: Final = (("TiB", 2**40), ("TB", 10**12), ("GiB", 2**30), ("GB", 10**9), ("MiB", 2**20), ("MB", 10**6))
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_MAX_BYTES: Final = 2**63
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", re.ASCII)


def parse_duration(value: object) -> int:
    """Returns the milliseconds of ``"1h30m"``, ``"10s"``, ``"250ms"`` or of a number of seconds.

    Raises ValueError for other values, for negative durations and from 10^15 ms on.
    """
    if isinstance(value, bool):
        raise ValueError("write a duration such as 30s, 10m, 2h or 1h30m")  # noqa: TRY004 - pydantic expects ValueError
    if isinstance(value, (int, float)):
        if not 0 <= value < 1e12:
            raise ValueError("a duration is neither negative nor infinite")
        return round(value * 1_000)
    text = str(value).strip().lower()
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("write a duration such as 30s, 10m, 2h or 1h30m")
    total = sum(Fraction(number) * _DURATION_MS[unit] for number, unit in parts)
    if not total < 1e15:
        raise ValueError("a duration is neither negative nor infinite")
    return round(total)


def format_duration(ms: int) -> str:
    """Returns the shortest exact form of ``ms`` >= 0: ``7200000`` -> ``2h``, ``90000`` -> ``1m30s``."""
    if ms == 0:
        return "0s"
    out, rest = "", ms
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, _DURATION_MS[unit])
        out += f"{count}{unit}" if count else ""
    return out


def parse_bytes(value: object) -> int:
    """Returns the bytes of ``"16Gb"``, ``"300MiB"``, ``"1.5GiB"`` (in any case) or of a number of bytes.

    Raises ValueError for other values, for negative sizes and from 2^63 on.
    """
    if isinstance(value, bool):
        raise ValueError("write a size such as 512MiB or 16GB")  # noqa: TRY004 - pydantic expects ValueError
    if isinstance(value, int) and 0 <= value < _MAX_BYTES:
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if match is None or match[2].lower() not in (*_BYTES, ""):
        raise ValueError("write a size such as 512MiB or 16GB")
    count = Fraction(match[1]) * _BYTES.get(match[2].lower(), 1)
    if not count < _MAX_BYTES:
        raise ValueError("a size is less than 8 EiB")
    return round(count)


def format_bytes(count: int) -> str:
    """Returns the shortest exact form: ``24000000000`` -> ``24GB``, ``1073741824`` -> ``1GiB``."""
    for unit, size in _PRINT_BYTES:
        if count >= size and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)
