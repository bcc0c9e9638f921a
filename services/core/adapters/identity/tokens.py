"""Tokens of services: short-lived, signed with the caller's own key, valid at one called service only.

A token is a JWT (RFC 7519) signed with EdDSA: ``iss`` is the caller, ``aud`` the called service, ``exp`` at most
``LIFE_S`` after ``iat``. The verifier takes algorithm and key from its own file of public keys, never from the token.

A caller whose clock is wrong gets the server's time with the refusal, and makes its next token by that time. The server
is the only one that accepts this token, so a lying server gains nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import jwt

from services.core.adapters.identity.keys import KeyPair, PublicKeys
from services.core.domain.codec import MALFORMED
from services.core.domain.errors import Unauthenticated
from services.core.domain.service_access import SERVICES

T = TypeVar("T")

ALGORITHM: Final = "EdDSA"
LIFE_S: Final = 300
_RENEW_S: Final = 60
"""A token is replaced so long before it expires."""
LEEWAY_S: Final = 30
"""Difference of clocks that is tolerated."""
_MAX_BYTES: Final = 6_000
"""gRPC carries 8 KiB of metadata."""
_CACHED: Final = 1_000
"""Verified tokens that are kept; a service has one for each caller."""


class ServiceCredential:
    """Makes the tokens of one service for calls of another one, and keeps each until it is renewed."""

    def __init__(self, pair: KeyPair, audience: str, *, now_s: Callable[[], float] = time.time) -> None:
        """``audience``: the called service. ``now_s``: Unix seconds."""
        self._pair, self._audience, self._now_s = pair, audience, now_s
        self._token = ""
        self._made_at = 0
        self._offset_s = 0.0
        """The server's clock minus ours."""

    def authorization(self) -> str:
        """The value of the metadata ``authorization``."""
        now = self._now_s() + self._offset_s
        # A clock that was set back makes a token of the future invalid, too.
        if not self._token or not self._made_at <= now < self._made_at + LIFE_S - _RENEW_S:
            self._made_at = int(now)
            claims = {
                "iss": self._pair.owner,
                "aud": self._audience,
                "iat": self._made_at,
                "exp": self._made_at + LIFE_S,
            }
            self._token = jwt.encode(claims, self._pair.private, ALGORITHM, headers={"kid": self._pair.id})
        return f"Bearer {self._token}"

    def correct(self, server_ms: int) -> bool:
        """Uses the server's clock (Unix ms). Returns True if it differs, so that the call is worth another try."""
        offset_s = server_ms / 1000 - self._now_s()
        if abs(offset_s - self._offset_s) < LEEWAY_S / 2:
            return False
        self._offset_s, self._token = offset_s, ""
        return True


class VerifiedTokens(Generic[T]):
    """What was verified, by token: the latest ones. All are forgotten when a key changes."""

    def __init__(self, keys: PublicKeys, *, most: int) -> None:
        """``most``: tokens that are kept."""
        self._keys, self._most = keys, most
        self._version = keys.version
        self._cache: dict[str, T] = {}

    def get(self, token: str) -> T | None:
        """What the token was verified as with the present keys; None if it was not."""
        self._keys.refresh()
        if self._version != self._keys.version:
            self._version = self._keys.version
            self._cache.clear()
        return self._cache.get(token)

    def put(self, token: str, verified: T) -> None:
        """Keeps the token, as the latest one."""
        self._cache.pop(token, None)
        while len(self._cache) >= self._most:
            del self._cache[next(iter(self._cache))]
        self._cache[token] = verified


@dataclass(frozen=True, slots=True)
class _Verified:
    caller: str
    made_at: int
    expires: int
    until: int | None
    """Of its key."""


class ServiceTokenVerifier:
    """Verifies the tokens of callers of one service. A verified token is kept until it expires or a key changes."""

    def __init__(self, keys: PublicKeys, audience: str, *, now_s: Callable[[], float] = time.time) -> None:
        """``audience``: the service that is called."""
        self._keys, self._audience, self._now_s = keys, audience, now_s
        self._verified = VerifiedTokens[_Verified](keys, most=_CACHED)

    def verify(self, token: str) -> str:
        """Returns the calling service. Raises Unauthenticated, with the reason."""
        known = self._verified.get(token)
        if known is None or not self._is_valid(known):
            known = self._verify(token)
            self._verified.put(token, known)
        return known.caller

    def _is_valid(self, known: _Verified) -> bool:
        now = self._now_s()
        replaced = known.until is not None and known.until < now * 1000
        return not replaced and known.made_at - LEEWAY_S <= now < known.expires + LEEWAY_S

    def _verify(self, token: str) -> _Verified:
        claims, owner, until = decode(token, self._keys, self._audience)
        if owner not in SERVICES:
            raise Unauthenticated("the key of this token belongs to no service")
        made_at, expires = claims["iat"], claims["exp"]
        if not isinstance(made_at, int) or not isinstance(expires, int) or expires - made_at > LIFE_S:
            raise Unauthenticated(f"a token of a service is valid for at most {LIFE_S} s")
        now = self._now_s()
        if now >= expires + LEEWAY_S:
            raise Unauthenticated("this token has expired")
        if now < made_at - LEEWAY_S:
            raise Unauthenticated("this token is not valid yet; check the clocks")
        return _Verified(owner, made_at, expires, until)


def decode(
    token: str, keys: PublicKeys, audience: str, *, required: tuple[str, ...] = ("iat", "exp")
) -> tuple[Mapping[str, Any], str, int | None]:
    """Returns (claims, owner of the key, end of the key) of a token with a valid signature, issuer and audience.

    Times are not checked here. Raises Unauthenticated, with the reason.
    """
    if len(token) > _MAX_BYTES:
        raise Unauthenticated("this is no token of this installation")
    try:
        kid = jwt.get_unverified_header(token).get("kid")
        key = keys.find(kid) if isinstance(kid, str) else None
        if key is None:
            raise Unauthenticated("this token is signed with a key that this installation does not know")
        claims = jwt.decode(
            token,
            key.key,
            algorithms=[ALGORITHM],
            audience=audience,
            issuer=key.owner,
            options={
                "require": ["iss", "aud", *required],
                "strict_aud": True,
                "verify_exp": False,
                "verify_iat": False,
            },
        )
    except jwt.InvalidAudienceError:
        raise Unauthenticated(f"this token is not for {audience}") from None
    except (jwt.PyJWTError, *MALFORMED) as error:
        raise Unauthenticated(f"this token is not valid: {type(error).__name__}") from None
    return claims, key.owner, key.until
