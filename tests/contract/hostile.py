"""Hostile texts, which each port's contract suite tries against every adapter.

A port promises: a text is stored and read back exactly, or refused with InvalidRequest or TooLarge before anything is
written; the next call works.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import reduce
from typing import Any, Final, TypeAlias, TypeVar

from services.core.domain.errors import InvalidRequest, TooLarge

T = TypeVar("T")
Refusal: TypeAlias = InvalidRequest | TooLarge
HUGE: Final = "x" * 10_000_000
SMALL: Final[dict[str, str]] = {
    "empty": "",
    "space": " \t ",
    "NUL": "a\x00b",
    "only NUL": "\x00",
    "controls": "\x01\x1b[2J\x07\r\n\x7f\x85",
    "override": "\u202egpj.exe\u2066\u200b",
    "noncharacters": "\ufeff\ufffe\uffff\U0010ffff",
    "emoji": "\U0001f9f5" * 50,
    "dots": "a.b..c",
    "dollar": "$where",
    "operator": '{"$gt": ""}',
    "slashes": "a/b//c/",
    "up": "../../etc/passwd",
    "backslash": "..\\..\\%2e%2e%00",
    "quotes": "'\"; DROP TABLE jobs; --",
    "number": "-0x1e400",
    "long": "y" * 100_000,
    "high surrogate": "\ud800",
    "low surrogate": "a\udfffb",
}
TEXTS: Final[dict[str, str]] = {**SMALL, "10 MB": HUGE, "10 MB, not Unicode": HUGE + "\ud800"}
PLAIN: Final = frozenset(SMALL) - {
    "empty",
    "NUL",
    "only NUL",
    "long",
    "high surrogate",
    "low surrogate",
}
"""Names of texts that every adapter stores as a value."""
VALUES: Final[dict[str, Any]] = {
    "large integer": 2**70,
    "deep list": reduce(lambda inner, _: [inner], range(3_000), list[Any]()),
    "deep mapping": reduce(lambda inner, _: {"a": inner}, range(3_000), dict[str, Any]()),
    "list of 150 levels": reduce(lambda inner, _: [inner], range(150), list[Any]()),
    "mapping of 150 levels": reduce(lambda inner, _: {"a": inner}, range(150), dict[str, Any]()),
    "many keys": {str(number): number for number in range(20_000)},
}
"""Values of JSON documents that some store may refuse."""


def names(*, huge: bool) -> list[str]:
    """Names of the small texts; ``huge``: of those of 10 MB, too."""
    return list(TEXTS if huge else SMALL)


async def attempt(call: Awaitable[T]) -> T | Refusal:
    """The result of a call, or its refusal. A refusal does not repeat a whole 10 MB text."""
    try:
        return await call
    except (InvalidRequest, TooLarge) as refusal:
        if len(refusal.message) > 1_000:
            raise AssertionError("the message of the refusal is too long") from None
        return refusal
