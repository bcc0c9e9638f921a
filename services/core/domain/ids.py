"""Identifiers: time-ordered, lower-case base32, first a letter, at most 30 characters.

So one string is a DNS label, a Kubernetes name part, a file name and a keyset cursor at once.
The time and the randomness are given from outside; two ids of one millisecond differ in 60 random bits.
"""

from __future__ import annotations

import re
from typing import Final

# Crockford's alphabet, lower case: sorts like the numbers it stands for, has no i, l, o, u.
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_CHARS: Final = 10
_RANDOM_CHARS: Final = 12
RANDOM_BITS: Final = 5 * _RANDOM_CHARS
_VALID: Final = re.compile(rf"[a-z][{_ALPHABET}]{{{_TIME_CHARS + _RANDOM_CHARS}}}")


def _base32(number: int, width: int) -> str:
    return "".join(_ALPHABET[(number >> (5 * place)) & 31] for place in reversed(range(width)))


def make_id(prefix: str, *, now_ms: int, random_bits: int) -> str:
    """``prefix`` (one letter) + 10 characters of Unix milliseconds + 12 of randomness.

    ``random_bits`` must be a fresh number below ``2**RANDOM_BITS``.
    """
    if re.fullmatch("[a-z]", prefix) is None:
        raise ValueError(f"an id's prefix is one lower-case letter, not {prefix!r}")
    return prefix + _base32(now_ms, _TIME_CHARS) + _base32(random_bits, _RANDOM_CHARS)


def is_id(text: str, prefix: str) -> bool:
    """Whether ``text`` has the form of an id with this prefix (says nothing on existence)."""
    return text.startswith(prefix) and _VALID.fullmatch(text) is not None
