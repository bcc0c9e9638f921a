"""Finds the platform on this machine, if it is installed, and speaks its errors as ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from weft import _errors
from weft._errors import FieldError, NotFound, WeftError


def find_platform() -> Any | None:
    """The object behind the entry point ``local`` of ``weft.platform``; None where no platform is installed."""
    address = _entry_point()
    if address is None:
        return None
    users = {"", *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    sys.path.sort(key=lambda folder: folder in users)  # last: a `services` of the user's own is another one
    module, _, name = address.partition(":")
    return getattr(import_module(module), name)


def _entry_point() -> str | None:
    """``module:name`` as the installed distribution of the platform declares it.

    Read from the distribution's entry_points.txt: `importlib.metadata` takes longer to import than the platform itself.
    """
    for folder in sys.path:
        for file in sorted(Path(folder or ".").glob("weft_platform-*.dist-info/entry_points.txt")):
            section = ""
            for line in file.read_text(encoding="utf-8").splitlines():
                key, _, value = line.partition("=")
                if line.startswith("["):
                    section = line.strip("[] ")
                elif section == "weft.platform" and key.strip() == "local":
                    return value.strip()
    return None


def platform() -> Any:
    """The same; NotFound, with how to install it, where there is none."""
    platform = find_platform()
    if platform is None:
        raise NotFound("no platform is installed here, only its command line: `pip install weft-platform`")
    return platform


@contextmanager
def translated() -> Generator[None, None, None]:
    """Raises the SDK's error of the same name and fields in place of an error of the platform."""
    try:
        yield
    except WeftError:
        raise
    except _platform_error() as failed:
        kinds = [getattr(_errors, parent.__name__, None) for parent in type(failed).__mro__]
        kind = next((k for k in kinds if isinstance(k, type) and issubclass(k, WeftError)), WeftError)
        errors = tuple(FieldError(error.pointer, error.message, error.hint) for error in getattr(failed, "errors", ()))
        raise kind(str(failed), errors=errors) from failed


def _platform_error() -> type[Exception]:
    """The root of the platform's errors; WeftError without a platform."""
    platform: type[Exception] = getattr(find_platform(), "error", WeftError)
    return platform
