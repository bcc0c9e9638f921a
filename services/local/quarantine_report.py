"""Objects in quarantine of all services, as the api reports them: for `weft status` and `weft doctor`."""

from __future__ import annotations

import json
import urllib.request
from typing import Any, Final

from services.core.adapters.folder.secrets import FolderSecretStore
from services.core.domain.errors import WeftError
from services.core.runtime.home import Home

_TIMEOUT_S: Final = 5.0
_SHOWN: Final = 10
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback is never behind a proxy


async def admin_key(home: Home) -> str:
    """Returns the first administrator's key; empty before the api has made it."""
    return (await FolderSecretStore(home / "secrets").get("admin-key") or b"").decode().strip()


async def reported_quarantine(home: Home) -> dict[str, Any] | None:
    """``{held: [{service, kind, place, reason, since, job, advice}], silent: [service]}``; None if the api is away."""
    try:
        address, key = home.address("api"), await admin_key(home)
        request = urllib.request.Request(f"http://{address}/v1/quarantine", headers={"Authorization": f"Bearer {key}"})
        with _direct.open(request, timeout=_TIMEOUT_S) as answer:
            report: dict[str, Any] = json.load(answer)
    except (OSError, ValueError, WeftError):
        return None
    return report


async def quarantine_check(home: Home) -> tuple[str, bool, str, str]:
    """The check of `weft doctor`: (check, ok, detail, fix)."""
    report = await reported_quarantine(home)
    if report is None:
        return "quarantine", True, "unknown: the api does not run", ""
    held = report["held"]
    silent = f"; not asked: {', '.join(report['silent'])}" if report["silent"] else ""
    if not held:
        return "quarantine", True, f"nothing{silent}", ""
    shown = [f"{item['kind']} {item['place']} ({item['reason']}; since {item['since']})" for item in held[:_SHOWN]]
    more = [f"and {len(held) - _SHOWN} more: `weft status -o json`"] if len(held) > _SHOWN else []
    advice = list(dict.fromkeys(f"{item['kind']}: {item['advice']}" for item in held))
    return "quarantine", False, "; ".join([*shown, *more]) + silent, "; ".join(advice)
