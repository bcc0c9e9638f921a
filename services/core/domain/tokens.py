"""Learner tokens: good for one job, one attempt, one rank, and nothing else.

An HMAC over the identity with the installation's service secret: no store is asked to check one, and it dies with its
attempt because every use is checked against the current attempt as well. Standard library only: a helper that carries
one needs no cryptography package.
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
    job: str
    tenant: str
    attempt: int
    role: str
    rank: int
    name: str


def _mac(secret: bytes, body: bytes) -> str:
    return hmac.new(secret, _CONTEXT + body, hashlib.sha256).hexdigest()


def mint(secret: bytes, identity: LearnerIdentity) -> str:
    """The token: URL-safe base64 of the identity, a dot, its MAC."""
    body = base64.urlsafe_b64encode(json.dumps(asdict(identity), separators=(",", ":")).encode()).rstrip(b"=")
    return f"{body.decode()}.{_mac(secret, body)}"


def verify(secret: bytes, token: str) -> LearnerIdentity | None:
    """Whose token it is; None for any other text. Takes the same time for every wrong MAC."""
    body, _, mac = token.partition(".")
    if not token.isascii() or not hmac.compare_digest(mac, _mac(secret, body.encode())):
        return None
    padded = body + "=" * (-len(body) % 4)
    return LearnerIdentity(**json.loads(base64.urlsafe_b64decode(padded)))
