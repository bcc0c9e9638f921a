"""Which SDK this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def sdk_version() -> str:
    try:
        return version("weft-sdk")
    except PackageNotFoundError:  # a bare copy of the files, as in a learner
        return "unknown"
