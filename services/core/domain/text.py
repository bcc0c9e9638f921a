"""Text from outside in a form that every store takes: the one rule, applied once, at the platform's border.

JSON, SQLite, MongoDB, etcd and object stores each refuse other text: a NUL character, a surrogate that stands alone.
Python makes such surrogates of file names that are no UTF-8, and JSON may contain them. One refused text could keep a
job from ending, so it is escaped before it is sent or stored.
"""

from __future__ import annotations

import re
from typing import Final

_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_UNSTORABLE_IN_NAMES: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_BYTES: Final = range(0xDC80, 0xDD00)
"""Surrogates that stand for single bytes 0x80 to 0xFF (PEP 383, ``surrogateescape``)."""


def storable(text: str) -> str:
    r"""Replaces what stores refuse by a visible escape: ``\x00``, ``\xff`` (a byte that is no UTF-8), ``\ud800``.

    Other text, which is nearly all, is returned as it is. The result is valid UTF-8 without NUL, and unchanged by a
    second call.
    """
    return _UNSTORABLE.sub(_escaped, text)


def storable_name(name: str) -> str:
    r"""As ``storable``, for a file's name or path: also escapes control characters, U+FFFE and U+FFFF, which object
    keys may not have.

    Different names without a backslash stay different.
    """
    return _UNSTORABLE_IN_NAMES.sub(_escaped, name)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code in _BYTES:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"
