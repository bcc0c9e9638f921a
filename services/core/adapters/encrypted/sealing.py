"""Authenticated encryption by AES-256-GCM: a sealed text opens only with the same key and the same context.

A sealed text is 12 random bytes, then the ciphertext with its tag. The *context* (associated data) names the text's
place. It is not part of the sealed text, so a sealed text that is moved to another place does not open there.

Random nonces are safe for 2**32 texts under one key (NIST SP 800-38D, 8.3). A data key seals one text; a master key
reaches that number after fifty days of a thousand secrets a second.
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
    """The sealed text does not open: another key, another context, or changed bytes. Contains nothing of the text."""


def new_key() -> bytes:
    """A random key of 32 bytes, from the operating system."""
    return os.urandom(KEY_BYTES)


def context(*parts: str | int) -> bytes:
    """Encodes the parts; different lists of parts give different bytes."""
    return json.dumps(parts).encode()


def seal(key: bytes, text: bytes, where: bytes) -> bytes:
    """Encrypts the text. ``where``: the context."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, text, where)


def unseal(key: bytes, sealed: bytes, where: bytes) -> bytes:
    """Decrypts the text. Raises Broken."""
    if len(sealed) < _NONCE_BYTES + _TAG_BYTES:
        raise Broken
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], where)
    except InvalidTag:
        raise Broken from None


def to_text(data: bytes) -> str:
    """Base64, for JSON."""
    return base64.b64encode(data).decode()


def from_text(text: object) -> bytes:
    """Decodes the output of ``to_text``. Raises Broken for any other text, also for other forms of base64."""
    if not isinstance(text, str):
        raise Broken
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Broken from None
    if to_text(data) != text:
        raise Broken
    return data
