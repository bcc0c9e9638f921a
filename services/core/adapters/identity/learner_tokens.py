"""Tokens of learners: each is valid for one learner of one attempt of one job, at the intake of metrics only.

The guardian service signs them with a key that no other service has; metrics verifies them with the public key. A token
has no expiry of its own: the receiver also compares the attempt in it with the current attempt.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import jwt

from services.core.adapters.identity.keys import KeyPair, PublicKeys
from services.core.adapters.identity.tokens import ALGORITHM, VerifiedTokens, decode
from services.core.domain.codec import MALFORMED, load
from services.core.domain.errors import Unauthenticated
from services.core.domain.tokens import LearnerIdentity, verify_shared

OWNER: Final = "learner-tokens"
"""Of the signing key, in the file of public keys and in the secret store."""
OVERLAP_MS: Final = 30 * 24 * 3_600_000
"""A replaced key is accepted for 30 days: learners that run keep their tokens."""
_AUDIENCE: Final = "intake"
_KEPT: Final = 10_000
"""Verified tokens that are kept: as many as an installation has live learners."""


class LearnerTokenSigner:
    """Makes learner tokens. Equal identities get equal tokens."""

    def __init__(self, pair: KeyPair) -> None:
        self._pair = pair

    def mint(self, identity: LearnerIdentity) -> str:
        claims = {"iss": self._pair.owner, "aud": _AUDIENCE, "learner": asdict(identity)}
        return jwt.encode(claims, self._pair.private, ALGORITHM, headers={"kid": self._pair.id})


class LearnerTokenVerifier:
    """Verifies learner tokens. ``shared``: the secret of an older installation, which signed its learners' tokens."""

    def __init__(self, keys: PublicKeys, shared: bytes | None = None) -> None:
        self._keys, self._shared = keys, shared
        self._verified = VerifiedTokens[LearnerIdentity](keys, most=_KEPT)

    def verify(self, token: str) -> LearnerIdentity:
        """Returns the learner that the token was made for. Raises Unauthenticated."""
        known = self._verified.get(token)
        if known is None:
            known = self._verify(token)
            self._verified.put(token, known)
        return known

    def _verify(self, token: str) -> LearnerIdentity:
        if self._shared is not None and (learner := verify_shared(self._shared, token)) is not None:
            return learner
        claims, owner, _ = decode(token, self._keys, _AUDIENCE, required=("learner",))
        if owner != OWNER:
            raise Unauthenticated("the key of this token does not sign learners' tokens")
        try:
            return load(LearnerIdentity, claims["learner"])
        except MALFORMED as error:
            raise Unauthenticated("this token names no learner") from error
