"""The place of `weft._aio._to_thread` where there is no event loop to keep free."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def to_thread(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """What ``work`` gives."""
    return work(*args, **named)
