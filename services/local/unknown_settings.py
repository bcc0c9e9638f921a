"""Finds variables ``WEFT_...`` that are no settings: a misspelled bound would bound nothing, without a word."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from services.local.setting_names import SETTINGS

COMMAND_LINE: Final = frozenset(
    {
        "WEFT_HOME",
        "WEFT_URL",
        "WEFT_KEY",
        "WEFT_PROFILE",
        "WEFT_DEBUG",
        "WEFT_PYTHON",
        "WEFT_BACKUP_PASSPHRASE",
    }
)
"""Variables of the command line and of set-up."""
_OTHERS: Final = frozenset({"WEFT_SETTINGS_FILE", "WEFT_FAILPOINTS", "WEFT_REPORT_MAX_BYTES", "WEFT_DEMO_HOME"})
_OF_TESTS: Final = "WEFT_TEST_"
_LINE: Final = re.compile(r"\s*(?:export\s+)?(WEFT_\w+)\s*=", re.ASCII)


def is_setting(name: str) -> bool:
    """Whether a variable has an effect on the platform, or may have one in its tests."""
    return name in SETTINGS or name in _OTHERS or name.startswith(_OF_TESTS)


def unknown_settings(environ: Mapping[str, str] = os.environ) -> list[str]:
    """What the environment and the file of WEFT_SETTINGS_FILE set without an effect, and the setting that looks alike.

    E.g. "WEFT_NODE_DISC (WEFT_NODE_DISK?)".
    """
    given = {name for name in environ if name.startswith("WEFT_")} | _names_in(environ.get("WEFT_SETTINGS_FILE", ""))
    return [_shown(name) for name in sorted(given) if not is_setting(name) and name not in COMMAND_LINE]


def _names_in(file: str) -> set[str]:
    """The variables that the file sets; none if it cannot be read, which the start reports."""
    try:
        lines = Path(file).read_text(errors="replace").splitlines() if file else []
    except OSError:
        return set()
    return {match[1] for line in lines if (match := _LINE.match(line))}


def _shown(name: str) -> str:
    import difflib  # noqa: PLC0415 - hardly ever needed

    close = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.8)
    return f"{name} ({close[0]}?)" if close else name
