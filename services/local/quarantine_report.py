"""Objects in quarantine of all services, as the api reports them: for `weft status` and `weft doctor`."""

from __future__ import annotations

from typing import Any, Final

from services.core.domain.errors import WeftError
from services.core.runtime.home import Home
from services.local.api_reader import read_api

_TIMEOUT_S: Final = 5.0
_SHOWN: Final = 10


def reported_quarantine(home: Home) -> dict[str, Any] | None:
    """``{held: [{service, kind, place, reason, since, job, advice}], silent: [service]}``; None if the api is away."""
    try:
        report: dict[str, Any] = read_api(home, "/v1/quarantine", timeout_s=_TIMEOUT_S)
    except WeftError:
        return None
    return report


def quarantine_check(home: Home) -> tuple[str, bool, str, str]:
    """The check of `weft doctor`: (check, ok, detail, fix)."""
    report = reported_quarantine(home)
    if report is None:
        return "quarantine", True, "unknown: the api does not run", ""
    held = report["held"]
    silent = f"; not asked: {', '.join(report['silent'])}" if report["silent"] else ""
    if not held:
        return "quarantine", True, f"nothing{silent}", ""
    shown = [f"{item['kind']} {item['place']} ({item['reason']}; since {item['since']})" for item in held[:_SHOWN]]
    more = [f"and {len(held) - _SHOWN} more: `{home.command('status -o json')}`"] if len(held) > _SHOWN else []
    advice = list(dict.fromkeys(f"{item['kind']}: {item['advice']}" for item in held))
    return "quarantine", False, "; ".join([*shown, *more]) + silent, "; ".join(advice)
