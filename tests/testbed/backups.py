"""Backup and restore of stopped platforms, and their content as one value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from services.local.commands import PLATFORM
from tests.testbed.filled_stores import contents, environment, with_stores

EMBEDDED: Final[Mapping[str, str]] = {}
"""Settings of a platform that needs no servers for its stores."""


def snapshot(home: Path, more: Mapping[str, str] = EMBEDDED) -> dict[str, Any]:
    return with_stores(home, more, contents, writing=False)


def kinds(content: Mapping[str, Any], *of: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name.partition(" ")[0] in of}


def backup(home: Path, file: Path, more: Mapping[str, str] = EMBEDDED, **options: Any) -> dict[str, Any]:
    with environment(home, more):
        return PLATFORM.backup(str(file), str(home), report=lambda _: None, **options)


def restore(home: Path, file: Path, more: Mapping[str, str] = EMBEDDED, **options: Any) -> dict[str, Any]:
    with environment(home, more):
        return PLATFORM.restore(str(file), str(home), **options)
