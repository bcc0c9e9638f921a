"""Learner tokens: each is valid for one learner of one attempt of one job.

A token is an HMAC over the learner's identity, made with the installation's service secret. It is verified without a
store. It has no expiry of its own: the receiver also compares the attempt in it with the current attempt. Standard
library only, because helpers import this module and have no cryptography package.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import asdict, dataclass
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


def mint(secret: bytes, identity: LearnerIdentity) -> str:
    """Returns a token: the identity as URL-safe base64 JSON, a dot, and its HMAC-SHA256 in hexadecimal."""
    body = base64.urlsafe_b64encode(json.dumps(asdict(identity), separators=(",", ":")).encode()).rstrip(b"=")
    return f"{body.decode()}.{_mac(secret, body)}"


def verify(secret: bytes, token: str) -> LearnerIdentity | None:
    """Returns the identity in a token that was made with this secret, and None for any other text.

    The comparison takes the same time for every wrong MAC.
    """
    body, _, mac = token.partition(".")
    if not token.isascii() or not hmac.compare_digest(mac, _mac(secret, body.encode())):
        return None
    padded = body + "=" * (-len(body) % 4)
    return LearnerIdentity(**json.loads(base64.urlsafe_b64decode(padded)))
