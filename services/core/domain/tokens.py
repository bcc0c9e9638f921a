"""The identity in a learner's token, and the tokens of installations before docs/adr/0015-identities.md.

Such a token is an HMAC over the identity, made with a secret that all services had. Learners that started before the
upgrade keep theirs. Standard library only, because helpers import this module and have no cryptography package.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Final

_CONTEXT: Final = b"weft learner token v1\x00"


@dataclass(frozen=True, slots=True)
class LearnerIdentity:
    """The learner that a token was made for."""

    job: str
    """Job id."""
    tenant: str
    attempt: int
    role: str
    rank: int
    """Global rank, from 0."""
    name: str
    """``<role>-<index>``, e.g. ``worker-0``."""


def _mac(secret: bytes, body: bytes) -> str:
    return hmac.new(secret, _CONTEXT + body, hashlib.sha256).hexdigest()


def verify_shared(secret: bytes, token: str) -> LearnerIdentity | None:
    """Returns the identity in a token that was made with this secret, and None for any other text.

    The token is the identity as URL-safe base64 JSON, a dot, and its HMAC-SHA256 in hexadecimal.

    The comparison takes the same time for every wrong MAC.
    """
    body, _, mac = token.partition(".")
    if not token.isascii() or not hmac.compare_digest(mac, _mac(secret, body.encode())):
        return None
    padded = body + "=" * (-len(body) % 4)
    return LearnerIdentity(**json.loads(base64.urlsafe_b64decode(padded)))
