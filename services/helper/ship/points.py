"""Lines of JSON to metric points. A line that is none, or only nearly one, is simply a line.

Taken as points:
* what ``weft.report`` writes: ``{"time_ms", "step", "values": {name: number}, "context": {}}`` (cli/weft/_learner.py);
* ``{"step": 7, "loss": 0.3, ...}``: an object with ``step`` and numbers beside it;
* ``{"metrics": {"loss": 0.3}, "step": 7}``, with or without the step.
On stdout a line is shown as a log line as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_APART: Final = frozenset(
    {"step", "time", "time_ms", "timestamp", "context", "progress", "dropped", "values", "metrics"}
)
"""Keys of the flat form that are no metrics."""
_NAME_CHARS: Final = 256
_MOST: Final = 4096
"""Points of one line, and far above what anybody reports at once."""
_CONTEXT_CHARS: Final = 512
"""It is repeated for each point of the line."""
_INT64: Final = 1 << 63
_SPELLED: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, slots=True)
class Reported:
    """What one line says."""

    values: Mapping[str, float] = field(default_factory=dict)
    step: int | None = None
    time_ms: int | None = None
    context: Mapping[str, str] = field(default_factory=dict)
    progress: tuple[float, int] | None = None
    """(fraction, milliseconds left or -1)."""


def looks_like_points(line: bytes) -> bool:
    """A quick no for nearly all lines of a log."""
    return line.startswith(b"{") and line.rstrip().endswith(b"}") and (b'"step"' in line or b'"metrics"' in line)


def parse(line: bytes) -> Reported | None:
    """What the line reports; None where it reports nothing."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    values = _values(found)
    progress = _progress(found.get("progress"))
    if not values and progress is None:
        return None
    return Reported(
        values=values, step=_whole(found.get("step")), time_ms=_time(found.get("time_ms")),
        context=_context(found.get("context")), progress=progress,
    )  # fmt: skip


def _values(found: Mapping[str, Any]) -> dict[str, float]:
    for key in ("values", "metrics"):
        if isinstance(found.get(key), dict):
            named = found[key]
            break
    else:
        named = {name: value for name, value in found.items() if name not in _APART} if "step" in found else {}
    out: dict[str, float] = {}
    for name, value in named.items():
        number = _number(value)
        if number is not None and 0 < len(name) <= _NAME_CHARS and len(out) < _MOST:
            out[_plain(name)] = number
    return out


def _number(value: object) -> float | None:
    if isinstance(value, str):
        return _SPELLED.get(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _whole(value: object) -> int | None:
    number = _number(value)
    if number is None or not math.isfinite(number) or number != int(number):
        return None
    whole = value if isinstance(value, int) else int(number)
    return whole if -_INT64 <= whole < _INT64 else None


def _time(value: object) -> int | None:
    whole = _whole(value)
    return whole if whole is not None and 0 <= whole < 1 << 48 else None


def _context(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    out: dict[str, str] = {}
    left = _CONTEXT_CHARS
    for name, item in value.items():
        text = _plain(item if isinstance(item, str) else json.dumps(item))
        left -= len(name) + len(text)
        if left < 0:
            break
        out[_plain(name)] = text
    return out


def _progress(value: object) -> tuple[float, int] | None:
    if not isinstance(value, dict):
        return None
    fraction, left = _number(value.get("fraction")), _number(value.get("eta_s"))
    if fraction is None or math.isnan(fraction):
        return None
    known = left is not None and 0 <= left < 1e12
    return min(1.0, max(0.0, fraction)), round(left * 1000) if known and left is not None else -1


def _plain(text: str) -> str:
    """JSON may smuggle in lone surrogates, which no message can carry."""
    return text.encode("utf-8", "replace").decode()
