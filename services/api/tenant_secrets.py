"""Secrets of tenants: credentials under a name, e.g. of an object store. No method returns a value.

Names and keys are shown to the tenant's users; values enter no answer, log line or error. How they are stored:
``services.core.use_cases.tenant_secrets``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import structlog

from services.api.access import Principal
from services.api.params import wrong_field
from services.core.domain import registry_credentials, s3_data
from services.core.domain.errors import Conflict, FieldError, Internal, InvalidSpec, NotFound
from services.core.domain.spec import JobSpec
from services.core.ports.clock import Clock
from services.core.ports.secret_store import SecretStore
from services.core.use_cases.tenant_secrets import StoredSecret, encoded, read_secret, stored_name

MOST_KEYS: Final = 16
MOST_BYTES: Final = 64 * 1024
"""Bytes of all values of a secret together, in UTF-8."""
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSecret:
    """A secret without its values. Times are Unix milliseconds; without them the stored secret is damaged."""

    name: str
    keys: tuple[str, ...] = ()
    """Sorted."""
    created: int | None = None
    changed: int | None = None
    changed_by: str = ""
    """``ada``, or ``acme/ada`` of another tenant."""


class TenantSecrets:
    def __init__(self, store: SecretStore, *, clock: Clock, most_of_tenant: int) -> None:
        """``most_of_tenant``: secrets that a tenant can have."""
        self._store, self._clock, self._most_of_tenant = store, clock, most_of_tenant
        self._setting = asyncio.Lock()

    async def list(self, tenant: str) -> list[TenantSecret]:
        """The tenant's secrets, by name; damaged ones without keys and times."""
        read = [(name, await self._read(tenant, name)) for name in await self._names(tenant)]
        return [_shown(name, sealed) for name, sealed in sorted(read, key=lambda entry: entry[0])]

    async def set(self, principal: Principal, tenant: str, name: str, values: Mapping[str, str]) -> TenantSecret:
        """Creates the secret, or replaces all of its keys.

        Raises InvalidRequest; Conflict if the tenant has too many secrets.
        """
        _check(name, values)
        entry = stored_name(tenant, name)
        async with self._setting:  # so that calls at the same time do not exceed the bound
            before = await self._read(tenant, name)
            if before is None:
                await self._check_count(tenant, name)
            now = self._clock.now_ms()
            sealed = StoredSecret(
                created=now if before is None else before.created,
                changed=now,
                changed_by=_user(principal, tenant),
                values=dict(values),
            )
            await self._store.put(entry, encoded(sealed))
        secret = _shown(name, sealed)
        log.info("secret.set", tenant=tenant, secret=name, keys=secret.keys, user=sealed.changed_by)
        return secret

    async def delete(self, principal: Principal, tenant: str, name: str) -> None:
        """Removes the secret, also a damaged one. Raises NotFound."""
        entry = stored_name(tenant, name)
        if _NAME.fullmatch(name) is None or entry not in await self._store.names(entry):
            raise NotFound(f"there is no secret {name[:63]!r} in tenant {tenant}; `weft secret` lists the names")
        await self._store.delete(entry)
        log.info("secret.deleted", tenant=tenant, secret=name, user=_user(principal, tenant))

    async def _check_count(self, tenant: str, name: str) -> None:
        """Raises Conflict if there is no room for a further secret."""
        names = await self._names(tenant)
        if name not in names and len(names) >= self._most_of_tenant:
            raise Conflict(
                f"tenant {tenant} has {len(names)} secrets, which is the most (WEFT_MAX_TENANT_SECRETS); delete those "
                "that are not used"
            )

    async def check_spec(self, tenant: str, spec: JobSpec) -> None:
        """Raises InvalidSpec for secrets of data stores and images that the tenant does not have, or that lack keys."""
        needed = _needed(spec)
        if not needed:
            return
        # A spec may have thousands of stores: each secret is read once, and only if the tenant has it.
        names = {entry.secret for entry in needed} & set(await self._names(tenant))
        secrets = {name: await self._read(tenant, name) for name in names}
        errors = [error for entry in needed if (error := entry.error(tenant, secrets)) is not None]
        if errors:
            raise InvalidSpec.of(errors)

    async def _names(self, tenant: str) -> Sequence[str]:
        prefix = stored_name(tenant, "")
        return [name.removeprefix(prefix) for name in await self._store.names(prefix)]

    async def _read(self, tenant: str, name: str) -> StoredSecret | None:
        """None for a missing secret, and for a damaged one."""
        try:
            return await read_secret(self._store, tenant, name)
        except Internal:
            return None


class _Needed(NamedTuple):
    """A secret that a field of a spec names."""

    pointer: str
    secret: str
    how_to_set: str
    wrong: Callable[[Mapping[str, str]], str]
    """The values of the secret -> what keeps them from being used, for people; empty: nothing."""

    def error(self, tenant: str, secrets: Mapping[str, StoredSecret | None]) -> FieldError | None:
        """What keeps the secret from being used. ``secrets``: by name; None for a damaged one."""
        how = f"set it: {self.how_to_set}"
        if self.secret not in secrets:
            return FieldError(self.pointer, f"tenant {tenant} has no secret '{self.secret}'", how)
        secret = secrets[self.secret]
        if secret is None:
            return FieldError(self.pointer, f"the secret '{self.secret}' of tenant {tenant} is damaged", how)
        wrong = self.wrong(secret.values)
        return FieldError(self.pointer, f"the secret '{self.secret}' {wrong}", how) if wrong else None


def _needed(spec: JobSpec) -> list[_Needed]:
    needed = [
        _Needed(
            f"/data_stores/{index}/secret",
            store.secret,
            s3_data.HOW_TO_SET.format(name=store.secret),
            s3_data.wrong_credentials,
        )
        for index, store in enumerate(spec.data_stores)
        if store.type == "s3" and store.secret is not None
    ]
    if spec.image_pull_secret is not None and spec.image is not None:
        name = spec.image_pull_secret
        wrong = partial(registry_credentials.wrong_credentials, image=spec.image)
        needed.append(_Needed("/image_pull_secret", name, registry_credentials.HOW_TO_SET.format(name=name), wrong))
    return needed


def _shown(name: str, sealed: StoredSecret | None) -> TenantSecret:
    if sealed is None:
        return TenantSecret(name=name)
    return TenantSecret(
        name=name,
        keys=tuple(sorted(sealed.values)),
        created=sealed.created,
        changed=sealed.changed,
        changed_by=sealed.changed_by,
    )


def _user(principal: Principal, tenant: str) -> str:
    return principal.user if principal.tenant == tenant else f"{principal.tenant}/{principal.user}"


def _check(name: str, values: Mapping[str, str]) -> None:
    """Raises InvalidRequest, without any part of a value or of a key that is malformed: it may be a value."""
    if _NAME.fullmatch(name) is None:
        raise wrong_field(
            "/name",
            "a secret's name has 1 to 63 lower-case letters, digits or '-', first and last a letter or digit",
        )
    if not 1 <= len(values) <= MOST_KEYS:
        raise wrong_field("/values", f"a secret has 1 to {MOST_KEYS} keys")
    if any(_KEY.fullmatch(key) is None for key in values):
        raise wrong_field("/values", "a key has 1 to 64 letters, digits, '_', '.' or '-'")
    for key, value in values.items():
        if not value:
            raise wrong_field(f"/values/{key}", "the value is empty")
    try:
        size = sum(len(value.encode()) for value in values.values())
    except UnicodeEncodeError:
        raise wrong_field("/values", "a value is valid Unicode") from None
    if size > MOST_BYTES:
        raise wrong_field("/values", f"the values of a secret have at most {MOST_BYTES} bytes together")
