"""API keys: ``weft_<id>_<secret>``. The secret has 256 bits; only its HMAC under the installation's pepper is stored.

The id finds the record, so a check costs one look-up and one HMAC for every caller. Without the pepper, which is in the
SecretStore, a stolen record store allows no offline guessing. Records are cached for ``key_cache_s``: a revoked key may
work for that long.

Revoked keys stay as records: a replayed creation must not make one valid again, and ids in histories keep a name.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from services.api.access import PERMISSIONS, Principal, Scope, checked_name
from services.api.params import wrong_field
from services.api.stale_cache import STALE_S
from services.core.domain import codec
from services.core.domain.codec import MALFORMED
from services.core.domain.document import MAX_TIME_MS
from services.core.domain.errors import (
    Conflict,
    Duplicate,
    IdempotencyMismatch,
    Internal,
    NotFound,
    PermissionDenied,
    Quarantined,
    StaleRevision,
    Unauthenticated,
    Unavailable,
)
from services.core.domain.ids import RANDOM_BITS, is_id, make_id
from services.core.ports.clock import Clock
from services.core.ports.record_store import Record, RecordStore
from services.core.ports.secret_store import SecretStore
from services.core.runtime.quarantine import RECORD, Quarantine

KIND: Final = "keys"
ADMIN_KEY: Final = "admin-key"
"""Name of the secret that holds the first administrator's whole key."""
PEPPER: Final = "key-pepper"
_TOKEN: Final = re.compile(r"weft_(k[0-9a-z]{22})_([0-9a-f]{64})")
_CACHED: Final = 10_000
_DAY_MS: Final = 24 * 3600 * 1000
_LABEL: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{0,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key without its secret. Times are Unix milliseconds."""

    id: str
    name: str
    """Where the key is used; for people."""
    user: str
    tenant: str
    scope: Scope
    created: int
    mac: str
    """Hex HMAC-SHA256 of the secret; never shown."""
    revoked: int | None = None
    made_from: str = ""
    """Digest of the request that made it under an idempotency key; else empty."""


@dataclass(frozen=True, slots=True)
class NewKey:
    key: ApiKey
    text: str = field(repr=False)
    replayed: bool
    """The key was made before, under this idempotency key."""


class Keys:
    def __init__(
        self,
        records: RecordStore,
        *,
        pepper: bytes,
        clock: Clock,
        quarantine: Quarantine,
        cache_s: float,
        most_of_user: int,
    ) -> None:
        """``most_of_user``: keys of one user that are valid or were made within the last day."""
        self._most_of_user = most_of_user
        self._creating = asyncio.Lock()
        self._records = records
        self._quarantine = quarantine
        self._pepper = pepper
        self._clock = clock
        self._cache_s = cache_s
        self._cache: OrderedDict[str, tuple[float, ApiKey | None]] = OrderedDict()

    async def authenticate(self, token: str) -> Principal:
        """The holder of the key. Raises Unauthenticated, in the same words, for an unknown, wrong or revoked key."""
        match = _TOKEN.fullmatch(token)
        key = await self._cached(match[1]) if match else None
        secret = match[2] if match else ""
        known = key.mac if key else "0" * 64
        if not hmac.compare_digest(self._mac(secret), known) or key is None or key.revoked is not None:
            raise Unauthenticated("this API key is unknown or was revoked")
        return _principal(key)

    async def holder(self, key_id: str) -> Principal:
        """The holder of the key with this id. Raises Unauthenticated if it is unknown or was revoked."""
        key = await self._cached(key_id)
        if key is None or key.revoked is not None:
            raise Unauthenticated("this API key is unknown or was revoked")
        return _principal(key)

    async def create(
        self,
        principal: Principal,
        *,
        name: str,
        user: str | None = None,
        tenant: str | None = None,
        scope: str | None = None,
        idempotency_key: str | None = None,
    ) -> NewKey:
        """A new key and its whole text, which is stored nowhere. Only admins make keys for others.

        Under an idempotency key the text is derived from it and the pepper, so that a retry gets the same answer.
        Raises InvalidRequest, PermissionDenied, IdempotencyMismatch; Conflict if the user has too many keys.
        """
        wanted = self._wanted(principal, name=name, user=user, tenant=tenant, scope=scope)
        async with self._creating:  # so that calls at the same time do not exceed the bound
            return await self._create(principal, wanted, idempotency_key)

    async def _create(self, principal: Principal, wanted: dict[str, Any], idempotency_key: str | None) -> NewKey:
        if idempotency_key is None:
            await self._check_count(wanted["tenant"], wanted["user"])
            bits = self._clock.random_bits(RANDOM_BITS)
            key_id = make_id("k", now_ms=self._clock.now_ms(), random_bits=bits)
            key, text = await self._insert(key_id, f"{self._clock.random_bits(256):064x}", wanted)
            return NewKey(key, text, replayed=False)
        origin = f"{principal.tenant}/{principal.user}/{idempotency_key}"
        bits = int(self._derived("id", origin), 16) % 2**RANDOM_BITS
        key_id = make_id("k", now_ms=int(self._derived("time", origin)[:10], 16), random_bits=bits)
        made_from = hashlib.sha256(repr(sorted(wanted.items())).encode()).hexdigest()
        existing = await self._read(key_id)
        if existing is None:
            await self._check_count(wanted["tenant"], wanted["user"])
            try:
                key, text = await self._insert(key_id, self._derived("secret", origin), wanted, made_from=made_from)
            except Duplicate:
                existing = await self._read(key_id)
            else:
                return NewKey(key, text, replayed=False)
        if existing is None or existing.made_from != made_from:
            raise IdempotencyMismatch("this Idempotency-Key was used before, with another body")
        return NewKey(existing, f"weft_{key_id}_{self._derived('secret', origin)}", replayed=True)

    async def _check_count(self, tenant: str, user: str) -> None:
        """Raises Conflict. Revoked keys stay as records, so those of the last day count: a loop makes no more a day."""
        since, count = self._clock.now_ms() - _DAY_MS, 0
        async for key in self._all({"tenant": tenant, "user": user}):
            count += key.revoked is None or key.created >= since
        if count >= self._most_of_user:
            raise Conflict(
                f"{tenant}/{user} has {count} API keys that are valid or were made within the last day, which is the "
                "most (WEFT_MAX_USER_KEYS); revoke keys that are not used"
            )

    async def list(self, principal: Principal) -> list[ApiKey]:
        """The caller's keys, revoked ones included; for admins the keys of all users."""
        index = {} if principal.admin else {"tenant": principal.tenant, "user": principal.user}
        return [key async for key in self._all(index)]

    async def _all(self, index: Mapping[str, str]) -> AsyncIterator[ApiKey]:
        """The keys that can be read, page by page."""
        after: str | None = None
        while page := await self._records.find(KIND, index, after=after):
            for record in page:
                if (key := self._key(record)) is not None:
                    yield key
            after = page[-1].id

    async def revoke(self, principal: Principal, key_id: str) -> None:
        """Ends the key within ``key_cache_s``. Raises NotFound for an unknown key, and for another user's."""
        for _ in range(10):
            record = await self._records.get(KIND, key_id) if is_id(key_id, "k") else None
            key = self._key(record) if record is not None else None
            if (
                record is None
                or key is None
                or not (principal.admin or (key.tenant, key.user) == (principal.tenant, principal.user))
            ):
                raise NotFound(f"there is no key {key_id}")
            if key.revoked is not None:
                return
            body = codec.dump(replace(key, revoked=self._clock.now_ms()))
            try:
                await self._records.replace(replace(record, body=body))
            except StaleRevision:
                continue
            self._cache.pop(key_id, None)
            return
        raise Internal("the key kept changing while it was revoked")

    async def adopt(self, text: str, wanted: dict[str, Any]) -> None:
        """Makes the record of a key whose text exists, unless the record exists."""
        match = _TOKEN.fullmatch(text)
        if match is None:
            raise Internal(f"the secret '{ADMIN_KEY}' does not hold a key; remove it, and a new one is made")
        try:
            await self._insert(match[1], match[2], wanted)
        except Duplicate:
            return

    def _wanted(
        self, principal: Principal, *, name: str, user: str | None, tenant: str | None, scope: str | None
    ) -> dict[str, Any]:
        wanted: dict[str, Any] = {
            "name": name,
            "user": principal.user if user is None else user,
            "tenant": principal.tenant if tenant is None else tenant,
            "scope": "user" if scope is None else scope,
        }
        if wanted["scope"] not in {"admin", "user"}:
            raise wrong_field("/scope", "a scope is admin or user")
        if _LABEL.fullmatch(name) is None:
            raise wrong_field("/name", "a key's name has at most 100 characters, none of them a control character")
        checked_name(wanted["user"], "/user")
        checked_name(wanted["tenant"], "/tenant")
        others = (wanted["user"], wanted["tenant"]) != (principal.user, principal.tenant) or wanted["scope"] == "admin"
        if others and not principal.admin:
            raise PermissionDenied("only an admin may make keys for others, or keys of an admin")
        return wanted

    async def _insert(
        self, key_id: str, secret: str, wanted: dict[str, Any], *, made_from: str = ""
    ) -> tuple[ApiKey, str]:
        key = ApiKey(id=key_id, created=self._clock.now_ms(), mac=self._mac(secret), made_from=made_from, **wanted)
        index = {"tenant": key.tenant, "user": key.user}
        await self._records.insert(Record(kind=KIND, id=key_id, body=codec.dump(key), index=index))
        self._cache.pop(key_id, None)
        return key, f"weft_{key_id}_{secret}"

    async def _cached(self, key_id: str) -> ApiKey | None:
        now = self._clock.boottime()
        held = self._cache.get(key_id)
        if held is not None and now < held[0]:
            return held[1]
        try:
            key = await self._read(key_id)
        except Unavailable:
            # The key cannot have been revoked since: a revocation is written to the same store.
            if held is None or now > held[0] + STALE_S:
                raise
            return held[1]
        self._cache[key_id] = (now + self._cache_s, key)
        self._cache.move_to_end(key_id)
        while len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return key

    async def _read(self, key_id: str) -> ApiKey | None:
        try:
            record = await self._records.get(KIND, key_id)
        except Quarantined as error:
            self._quarantine.hold(RECORD, f"{KIND}/{key_id}", error.message)
            return None
        return self._key(record) if record is not None else None

    def _key(self, record: Record) -> ApiKey | None:
        """The key of a record. None for a damaged record, which is quarantined."""
        place = f"{KIND}/{record.id}"
        try:
            key = _parse(record)
        except MALFORMED as error:
            self._quarantine.hold(RECORD, place, f"the record of key {record.id} cannot be read: {error}")
            return None
        self._quarantine.release(RECORD, place)
        return key

    def _mac(self, secret: str) -> str:
        return hmac.new(self._pepper, b"weft api key v1\x00" + secret.encode(), hashlib.sha256).hexdigest()

    def _derived(self, what: str, origin: str) -> str:
        message = f"weft derived key v1\x00{what}\x00{origin}".encode()
        return hmac.new(self._pepper, message, hashlib.sha256).hexdigest()


def _principal(key: ApiKey) -> Principal:
    return Principal(key_id=key.id, user=key.user, tenant=key.tenant, scope=key.scope)


def _parse(record: Record) -> ApiKey:
    """The key of a record. Raises KeyError or ValueError if it is damaged."""
    body = record.body
    text = {name: body[name] for name in ("name", "user", "tenant", "scope", "mac", "made_from")}
    times = [body["created"], *([] if body["revoked"] is None else [body["revoked"]])]
    if not all(isinstance(value, str) for value in text.values()) or text["scope"] not in PERMISSIONS:
        raise ValueError("its fields are of other types")
    if not all(isinstance(time, int) and 0 <= time <= MAX_TIME_MS for time in times):
        raise ValueError("it has a time before 1970 or after 9999")
    return ApiKey(id=record.id, created=body["created"], revoked=body["revoked"], **text)


async def read_pepper(store: SecretStore) -> bytes:
    """The installation's pepper, which is made at the first start."""
    return await store.get_or_create(PEPPER, secrets.token_bytes(32))


async def move_pepper(before: SecretStore, now: SecretStore) -> None:
    """Moves the pepper of an installation older than docs/adr/0008-secrets.md from its file to the secret store."""
    pepper = await before.get(PEPPER)
    if pepper is not None:
        await now.get_or_create(PEPPER, pepper)
        await before.delete(PEPPER)


async def ensure_admin_key(keys: Keys, store: SecretStore, clock: Clock) -> None:
    """Makes the first administrator's key: its text in the SecretStore (0600), its record among the keys.

    Safe to repeat, in any number of processes at once, and after the loss of the text or the record. A revoked key
    stays revoked; after its secret is removed, a new one is made.
    """
    key_id = make_id("k", now_ms=clock.now_ms(), random_bits=clock.random_bits(RANDOM_BITS))
    fresh = f"weft_{key_id}_{clock.random_bits(256):064x}"
    text = (await store.get_or_create(ADMIN_KEY, fresh.encode())).decode().strip()
    await keys.adopt(text, {"name": "first admin", "user": "admin", "tenant": "default", "scope": "admin"})
