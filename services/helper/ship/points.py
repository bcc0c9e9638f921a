"""Parses lines of JSON as metric points. Any other line reports nothing.

Forms of points:
* what ``weft.report`` writes: ``{"time_ms", "step", "values": {name: number}, "context": {}}`` (cli/weft/_learner.py);
* ``{"step": 7, "loss": 0.3, ...}``: an object with ``step`` and numbers beside it;
* ``{"metrics": {"loss": 0.3}, "step": 7}``, with or without the step.
On stdout such a line is shown as a log line as well. Names and context pass ``storable`` here, once. The context's key
``weft`` is the platform's own and is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from services.core.domain.text import storable
from services.core.domain.usage import CONTEXT_KEY

_NO_METRICS: Final = frozenset(
    {"step", "time", "time_ms", "timestamp", "context", "progress", "dropped", "values", "metrics"}
)
"""Keys of the flat form that name no metric."""
_NAME_CHARS: Final = 256
_MOST: Final = 4096
"""Points of one line: far above any real report."""
_CONTEXT_CHARS: Final = 512
"""It is repeated for each point of the line."""
_INT64: Final = 1 << 63
_SPELLED: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, slots=True)
class ParsedReport:
    """The content of one line."""

    values: Mapping[str, float] = field(default_factory=dict)
    step: int | None = None
    time_ms: int | None = None
    context: Mapping[str, str] = field(default_factory=dict)
    progress: tuple[float, int] | None = None
    """(fraction, milliseconds left or -1)."""


def may_hold_points(line: bytes) -> bool:
    """A fast test that is False for nearly all lines of a log."""
    return line.startswith(b"{") and line.rstrip().endswith(b"}") and (b'"step"' in line or b'"metrics"' in line)


def parse_report(line: bytes) -> ParsedReport | None:
    """The line's report; None where it reports nothing. Never raises."""
    try:
        # For bytes json.loads searches for their encoding, which takes as long as all the rest. This one is UTF-8.
        document = json.loads(line.decode("utf-8", "surrogatepass") if line.startswith(b'{"') else line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    values = _values(document)
    progress = _progress(document.get("progress"))
    if not values and progress is None:
        return None
    return ParsedReport(
        values=values,
        step=_whole(document.get("step")),
        time_ms=_time(document.get("time_ms")),
        context=_context(document.get("context")),
        progress=progress,
    )


def _values(document: Mapping[str, Any]) -> dict[str, float]:
    for key in ("values", "metrics"):
        if isinstance(document.get(key), dict):
            named = document[key]
            break
    else:
        flat = {name: value for name, value in document.items() if name not in _NO_METRICS}
        named = flat if "step" in document else {}
    values: dict[str, float] = {}
    for name, value in named.items():
        number = _number(value)
        if number is not None and 0 < len(name) <= _NAME_CHARS and len(values) < _MOST:
            values[storable(name)] = number
    return values


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
    if type(value) is int:  # nearly all
        return value if -_INT64 <= value < _INT64 else None
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
    context: dict[str, str] = {}
    left = _CONTEXT_CHARS
    for name, item in value.items():
        if name == CONTEXT_KEY:
            continue
        text = storable(item if isinstance(item, str) else json.dumps(item))
        plain = storable(name)
        left -= len(plain) + len(text)
        if left < 0:
            break
        context[plain] = text
    return context


def _progress(value: object) -> tuple[float, int] | None:
    if not isinstance(value, dict):
        return None
    fraction, left = _number(value.get("fraction")), _number(value.get("eta_s"))
    if fraction is None or math.isnan(fraction):
        return None
    known = left is not None and 0 <= left < 1e12
    return min(1.0, max(0.0, fraction)), round(left * 1000) if known and left is not None else -1
