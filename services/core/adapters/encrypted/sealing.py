"""AES-256-GCM, and nothing to choose: what is sealed can be opened only with the same key and the same context.

A sealed text is 12 random bytes, then the ciphertext with its tag. The *context* (associated data) says what the text
is: it is not in the sealed text, so one that is moved to another place does not open there.

Random nonces are safe for 2**32 texts under one key (NIST SP 800-38D, 8.3). Data keys seal one text each; a master key
would have to wrap a thousand secrets a second for fifty days.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16


class Broken(Exception):
    """It does not open: not this key, not this context, or not as it was sealed. Says nothing of the text."""


def new_key() -> bytes:
    """From the system's own randomness."""
    return os.urandom(KEY_BYTES)


def context(*parts: str | int) -> bytes:
    """One byte string for each list of parts: no two lists meet."""
    return json.dumps(parts).encode()


def seal(key: bytes, text: bytes, where: bytes) -> bytes:
    """The text, for who has the key and knows where it belongs."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, text, where)


def unseal(key: bytes, sealed: bytes, where: bytes) -> bytes:
    """The text. Broken."""
    if len(sealed) < _NONCE_BYTES + _TAG_BYTES:
        raise Broken
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], where)
    except InvalidTag:
        raise Broken from None


def to_text(data: bytes) -> str:
    """For JSON."""
    return base64.b64encode(data).decode()


def from_text(text: object) -> bytes:
    """Exactly what ``to_text`` wrote: base64 reads some texts that it would never write. Broken."""
    if not isinstance(text, str):
        raise Broken
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Broken from None
    if to_text(data) != text:
        raise Broken
    return data
