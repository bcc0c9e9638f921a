"""Which stores a platform uses, in ``stores.json`` of its folder.

A command in a terminal with other settings would read empty stores, or start the platform on them. Names and passwords
of URIs are left out.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Final

from services.core.domain.codec import MALFORMED
from services.core.domain.errors import InvalidRequest, NoSpace
from services.core.runtime.durable_files import read_json, write_json
from services.core.runtime.home import Home
from services.core.runtime.settings import Settings

_FILE: Final = "stores.json"
_CREDENTIALS: Final = re.compile(r"//.*@")


def save_stores(settings: Settings) -> None:
    """Writes the stores of these settings. If that fails, e.g. on a full disk, no store is known."""
    file, stores = settings.installation / _FILE, _stores(settings)
    if _last_stores(settings.installation) == stores:
        return
    with contextlib.suppress(OSError, NoSpace):
        file.unlink(missing_ok=True)
        write_json(file, {"stores": stores})


def changed_stores(settings: Settings) -> Mapping[str, tuple[str, str]]:
    """Setting -> (the store that the platform used last, the one of these settings), where the two differ."""
    last = _last_stores(settings.installation)
    return {
        name: (last[name], store) for name, store in _stores(settings).items() if name in last and last[name] != store
    }


def refuse_changed_stores(settings: Settings) -> None:
    """Raises InvalidRequest, with what to do, where the platform used other stores last."""
    changed = changed_stores(settings)
    if changed:
        differences = "; ".join(f"{name} was {last}, and is {now} here" for name, (last, now) in changed.items())
        raise InvalidRequest(
            f"the platform in {settings.home} used other stores when it ran last: {differences}. Set in this terminal "
            "what was set for `weft up`"
        )


def _stores(settings: Settings) -> dict[str, str]:
    stores = {"WEFT_JOB_STORE": settings.job_store, "WEFT_OBJECT_STORE": settings.object_store}
    return {name: _CREDENTIALS.sub("//", store) for name, store in stores.items()}


def _last_stores(home: Home) -> Mapping[str, str]:
    """Empty where it is not known: of a platform that has not run since this file exists."""
    try:
        stores = (read_json(home / _FILE) or {}).get("stores", {})
        return {str(name): str(store) for name, store in stores.items()}
    except (OSError, *MALFORMED):
        return {}
