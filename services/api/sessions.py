"""Sessions of browsers: ``weft_<id>_<secret>`` in a cookie, with the rights of the API key that each was made from.

A session ends with its key, by sign-out, after ``idle_ms`` without a request, and after ``most_ms`` in any case. Use is
recorded once in an eighth of ``idle_ms``, so a request costs no write. Only an HMAC of the secret is stored, and
records are cached for ``cache_s``: an ended session may work for that long at another api process.

A one-time code carries a key's rights to a browser without the key's text. Using it is a compare-and-set of its record,
so it works once, in whichever process.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final

import structlog

from services.api.access import Principal
from services.api.keys import Keys
from services.api.stale_cache import STALE_S
from services.core.domain import codec
from services.core.domain.codec import MALFORMED
from services.core.domain.document import MAX_TIME_MS
from services.core.domain.errors import NotFound, Quarantined, StaleRevision, Unauthenticated, Unavailable, WeftError
from services.core.domain.ids import RANDOM_BITS, is_id, make_id
from services.core.ports.clock import Clock
from services.core.ports.record_store import Record, RecordStore
from services.core.runtime.quarantine import RECORD, Quarantine

KIND: Final = "sessions"
CODES: Final = "session-codes"
CODE_MS: Final = 60_000
"""How long a one-time code works."""
_TOKEN: Final = re.compile(r"weft_(s[0-9a-z]{22})_([0-9a-f]{64})")
_CODE: Final = re.compile(r"weft_(c[0-9a-z]{22})_([0-9a-f]{64})")
_CACHED: Final = 10_000
_OF_KEY: Final = 50
"""Most sessions of one key: a new one ends the oldest."""
_REFUSED: Final = "this session has ended; sign in again"
_REFUSED_CODE: Final = "this code was used or has expired; run `weft dashboard` again, or sign in with an API key"
log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A session without its secret. Times are Unix milliseconds."""

    id: str
    key: str
    """Id of the API key that it was made from."""
    user: str
    tenant: str
    created: int
    used: int
    """When its use was recorded last."""
    mac: str
    """Hex HMAC-SHA256 of the secret; never shown."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A session that has just been authenticated."""

    session: StoredSession
    principal: Principal
    csrf: str
    """The token that requests which change something must repeat in a header. Only scripts of the page can read it."""
    expires: int
    """When it ends if it is not used again, in Unix milliseconds."""


class Sessions:
    def __init__(
        self,
        records: RecordStore,
        keys: Keys,
        *,
        pepper: bytes,
        clock: Clock,
        quarantine: Quarantine,
        cache_s: float,
        idle_ms: int,
        most_ms: int,
    ) -> None:
        self._records, self._keys, self._clock, self._quarantine = records, keys, clock, quarantine
        self._pepper = pepper
        self._cache_s, self._idle_ms, self._most_ms = cache_s, idle_ms, most_ms
        self._cache: OrderedDict[str, tuple[float, StoredSession | None]] = OrderedDict()

    async def sign_in(self, *, key: str | None = None, code: str | None = None) -> tuple[SignedIn, str]:
        """A new session from the text of an API key or a one-time code, and the value of its cookie.

        Raises Unauthenticated for an unknown, wrong or revoked key, and for a code that was used or has expired.
        """
        principal = await (self._keys.authenticate(key) if key is not None else self._use_code(code or ""))
        await self._make_room(principal.key_id)
        now = self._clock.now_ms()
        session_id = make_id("s", now_ms=now, random_bits=self._clock.random_bits(RANDOM_BITS))
        secret = f"{self._clock.random_bits(256):064x}"
        session = StoredSession(
            id=session_id,
            key=principal.key_id,
            user=principal.user,
            tenant=principal.tenant,
            created=now,
            used=now,
            mac=self._mac("session", secret),
        )
        index = {"tenant": session.tenant, "user": session.user, "key": session.key}
        await self._records.insert(Record(kind=KIND, id=session_id, body=codec.dump(session), index=index))
        log.info("session.started", session=session_id, key=session.key, tenant=session.tenant, user=session.user)
        return self._signed_in(session, principal, secret), f"weft_{session_id}_{secret}"

    async def make_code(self, principal: Principal) -> tuple[str, int]:
        """A one-time code with the caller's rights, and when it expires (Unix ms)."""
        now = self._clock.now_ms()
        code_id = make_id("c", now_ms=now, random_bits=self._clock.random_bits(RANDOM_BITS))
        secret, expires = f"{self._clock.random_bits(256):064x}", now + CODE_MS
        body = {"key": principal.key_id, "mac": self._mac("code", secret), "expires": expires, "used": False}
        await self._records.insert(Record(kind=CODES, id=code_id, body=body, index={}))
        return f"weft_{code_id}_{secret}", expires

    async def authenticate(self, cookie: str) -> SignedIn:
        """The session of a cookie, whose use is recorded. Raises Unauthenticated, in the same words, if it is unknown,
        wrong or over, or its key was revoked.
        """
        match = _TOKEN.fullmatch(cookie)
        session = await self._cached(match[1]) if match else None
        secret = match[2] if match else ""
        known = session.mac if session else "0" * 64
        if not hmac.compare_digest(self._mac("session", secret), known) or session is None or self._over(session):
            raise Unauthenticated(_REFUSED)
        try:
            holder = await self._keys.holder(session.key)
        except Unauthenticated:
            raise Unauthenticated(_REFUSED) from None
        session = await self._used(session)
        return self._signed_in(session, replace(holder, session=session.id), secret)

    async def check(self, principal: Principal) -> None:
        """Raises Unauthenticated if the caller's session has ended, or their key was revoked."""
        await self._keys.holder(principal.key_id)
        session = await self._cached(principal.session) if principal.session else None
        if principal.session and (session is None or self._over(session)):
            raise Unauthenticated(_REFUSED)

    def expires(self, session: StoredSession) -> int:
        """When it ends if it is not used again, in Unix milliseconds."""
        return min(session.used + self._idle_ms, session.created + self._most_ms)

    async def visible(self, principal: Principal) -> list[StoredSession]:
        """The caller's sessions that are not over; for admins those of all users."""
        index = {} if principal.admin else {"tenant": principal.tenant, "user": principal.user}
        return [session for session in await self._find(index) if not self._over(session)]

    async def end(self, principal: Principal, session_id: str) -> None:
        """Ends the session, within ``cache_s`` at every api. Raises NotFound for an unknown one and another user's."""
        session = await self._read(session_id) if is_id(session_id, "s") else None
        if session is None or not (
            principal.admin or (session.tenant, session.user) == (principal.tenant, principal.user)
        ):
            raise NotFound(f"there is no session {session_id}")
        await self._remove(session_id)
        log.info("session.ended", session=session_id, tenant=session.tenant, user=session.user)

    async def sweep(self) -> None:
        """Removes sessions and codes that are over."""
        for session in await self._find({}):
            if self._over(session):
                await self._remove(session.id)
        after: str | None = None
        while page := await self._records.find(CODES, {}, after=after):
            for record in page:
                expires = record.body.get("expires")
                if not isinstance(expires, int) or expires <= self._clock.now_ms():
                    await self._records.delete(CODES, record.id)
            after = page[-1].id

    async def keep_swept(self, *, every_s: float) -> None:
        """Sweeps every ``every_s`` seconds, until cancelled."""
        while True:
            await self._clock.sleep(every_s)
            try:
                await self.sweep()
            except WeftError as error:
                log.warning("sessions.sweep_failed", error=error.message)

    async def _use_code(self, text: str) -> Principal:
        match = _CODE.fullmatch(text)
        record = await self._records.get(CODES, match[1]) if match else None
        if match is None or record is None:
            raise Unauthenticated(_REFUSED_CODE)
        body = record.body
        mac, key, expires = (body.get(name) for name in ("mac", "key", "expires"))
        if not (isinstance(mac, str) and isinstance(key, str) and isinstance(expires, int)):
            raise Unauthenticated(_REFUSED_CODE)
        right = hmac.compare_digest(self._mac("code", match[2]), mac)
        if not right or body.get("used") is not False or self._clock.now_ms() >= expires:
            raise Unauthenticated(_REFUSED_CODE)
        try:
            await self._records.replace(replace(record, body={**body, "used": True}))
        except (StaleRevision, NotFound):  # another request used it first
            raise Unauthenticated(_REFUSED_CODE) from None
        return await self._keys.holder(key)

    async def _make_room(self, key_id: str) -> None:
        sessions = await self._find({"key": key_id})
        for session in sessions[: max(0, len(sessions) - _OF_KEY + 1)]:  # ids are in the order of time
            await self._remove(session.id)

    async def _used(self, session: StoredSession) -> StoredSession:
        """Records the use of the session, unless that was done a short while ago."""
        now = self._clock.now_ms()
        if now - session.used < self._idle_ms / 8:
            return session
        try:
            record = await self._records.get(KIND, session.id)
            if record is None:
                return session
            session = replace(session, used=now)
            await self._records.replace(replace(record, body=codec.dump(session)))
        except (StaleRevision, NotFound, Quarantined, Unavailable):  # another request records it, or a later one
            return session
        self._put(session.id, session)
        return session

    async def _find(self, index: dict[str, str]) -> list[StoredSession]:
        sessions: list[StoredSession] = []
        after: str | None = None
        while page := await self._records.find(KIND, index, after=after):
            sessions += [session for record in page if (session := self._session(record)) is not None]
            after = page[-1].id
        return sessions

    async def _remove(self, session_id: str) -> None:
        await self._records.delete(KIND, session_id)
        self._cache.pop(session_id, None)

    async def _cached(self, session_id: str) -> StoredSession | None:
        now = self._clock.boottime()
        held = self._cache.get(session_id)
        if held is not None and now < held[0]:
            return held[1]
        try:
            session = await self._read(session_id)
        except Unavailable:  # it cannot have been ended since: that is a write to the same store
            if held is None or now > held[0] + STALE_S:
                raise
            return held[1]
        self._put(session_id, session)
        return session

    def _put(self, session_id: str, session: StoredSession | None) -> None:
        self._cache[session_id] = (self._clock.boottime() + self._cache_s, session)
        self._cache.move_to_end(session_id)
        while len(self._cache) > _CACHED:
            self._cache.popitem(last=False)

    async def _read(self, session_id: str) -> StoredSession | None:
        try:
            record = await self._records.get(KIND, session_id)
        except Quarantined as error:
            self._quarantine.hold(RECORD, f"{KIND}/{session_id}", error.message)
            return None
        return self._session(record) if record is not None else None

    def _session(self, record: Record) -> StoredSession | None:
        """The session of a record. None for a damaged record, which is quarantined: its user signs in again."""
        place = f"{KIND}/{record.id}"
        try:
            session = codec.load(StoredSession, {**record.body, "id": record.id})
            if not 0 <= session.created <= session.used <= MAX_TIME_MS:
                raise ValueError("it has a time before 1970 or after 9999")
        except MALFORMED as error:
            self._quarantine.hold(RECORD, place, f"the record of session {record.id} cannot be read: {error}")
            return None
        self._quarantine.release(RECORD, place)
        return session

    def _over(self, session: StoredSession) -> bool:
        return self._clock.now_ms() >= self.expires(session)

    def _signed_in(self, session: StoredSession, principal: Principal, secret: str) -> SignedIn:
        holder = replace(principal, session=session.id)
        return SignedIn(session, holder, self._mac("csrf", secret), self.expires(session))

    def _mac(self, purpose: str, secret: str) -> str:
        message = f"weft {purpose} v1\x00{secret}".encode()
        return hmac.new(self._pepper, message, hashlib.sha256).hexdigest()
