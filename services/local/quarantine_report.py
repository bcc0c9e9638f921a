"""What the services of this machine hold in quarantine, as the api tells it: for `weft status` and `weft doctor`."""

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


async def _admin_key(home: Home) -> str:
    return (await FolderSecretStore(home / "secrets").get("admin-key") or b"").decode().strip()


async def told_quarantine(home: Home) -> dict[str, Any] | None:
    """``{held: [{service, kind, place, reason, since, job, advice}], silent: [service]}``; None: nobody can say."""
    try:
        address, key = home.address("api"), await _admin_key(home)
        asked = urllib.request.Request(f"http://{address}/v1/quarantine", headers={"Authorization": f"Bearer {key}"})
        with _direct.open(asked, timeout=_TIMEOUT_S) as answer:
            told: dict[str, Any] = json.load(answer)
    except (OSError, ValueError, WeftError):
        return None
    return told


async def examined(home: Home) -> tuple[str, bool, str, str]:
    """The line of `weft doctor`: (check, ok, detail, fix)."""
    told = await told_quarantine(home)
    if told is None:
        return "quarantine", True, "not asked: the api does not run", ""
    held = told["held"]
    silent = f"; not asked: {', '.join(told['silent'])}" if told["silent"] else ""
    if not held:
        return "quarantine", True, f"nothing{silent}", ""
    shown = [f"{one['kind']} {one['place']} ({one['reason']}; since {one['since']})" for one in held[:_SHOWN]]
    more = [f"and {len(held) - _SHOWN} more: `weft status -o json`"] if len(held) > _SHOWN else []
    advice = list(dict.fromkeys(f"{one['kind']}: {one['advice']}" for one in held))
    return "quarantine", False, "; ".join([*shown, *more]) + silent, "; ".join(advice)
