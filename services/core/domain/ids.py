"""Identifiers: 23 characters, lower-case base32, time-ordered, the first is a letter.

The same string can be a DNS label, a part of a Kubernetes name, a file name and a keyset cursor. The caller gives time
and randomness. Two ids of the same millisecond differ in 60 random bits.
"""

from __future__ import annotations

import re
from typing import Final

# Crockford's alphabet in lower case: text sorts as the numbers do, and there is no i, l, o or u to misread.
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_CHARS: Final = 10
_RANDOM_CHARS: Final = 12
RANDOM_BITS: Final = 5 * _RANDOM_CHARS
_VALID: Final = re.compile(rf"[a-z][{_ALPHABET}]{{{_TIME_CHARS + _RANDOM_CHARS}}}")


def _base32(number: int, width: int) -> str:
    return "".join(_ALPHABET[(number >> (5 * place)) & 31] for place in reversed(range(width)))


def make_id(prefix: str, *, now_ms: int, random_bits: int) -> str:
    """Returns ``prefix`` + 10 characters of Unix milliseconds + 12 random characters.

    ``prefix``: one lower-case letter, else ValueError. ``random_bits``: a fresh random number below
    ``2**RANDOM_BITS``. Ids of one prefix sort by ``now_ms``.
    """
    if re.fullmatch("[a-z]", prefix) is None:
        raise ValueError(f"an id's prefix is one lower-case letter, not {prefix!r}")
    return prefix + _base32(now_ms, _TIME_CHARS) + _base32(random_bits, _RANDOM_CHARS)


def is_id(text: str, prefix: str) -> bool:
    """Whether ``text`` has the form of an id with this prefix. Does not check that the object exists."""
    return text.startswith(prefix) and _VALID.fullmatch(text) is not None
