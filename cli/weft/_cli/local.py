"""Finds the platform on this machine, if it is installed, and speaks its errors as ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

from weft import _errors
from weft._errors import FieldError, NotFound, WeftError


def find_platform() -> Any | None:
    """The object behind the entry point; None where no platform is installed."""
    for point in entry_points(group="weft.platform", name="local"):
        users = {"", *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
        sys.path.sort(key=lambda folder: folder in users)  # last: a `services` of the user's own is another one
        return point.load()
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
