"""API keys: the caller's identity, list (with the sessions made from them), create, revoke."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from pydantic import ConfigDict, Field

from services.api.access import PERMISSIONS, Principal
from services.api.answers import Answer, Done, Time, as_time, as_time_or_none, doc
from services.api.keys import ApiKey as StoredKey
from services.api.params import Params
from services.api.services import ApiServices
from services.core.domain.ids import is_id


class KeyParams(Params):
    """The key to make."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(default="", description="Where the key is used; for people. At most 100 characters.")
    user: str | None = Field(default=None, description="User of the key; default: the caller. Admins: any.")
    tenant: str | None = Field(default=None, description="Tenant of the key; default: the caller's. Admins: any.")
    scope: str | None = Field(default=None, description="user or admin; default: user. Only admins make admin keys.")


class KeyHolder(Answer):
    """The caller, as the API key tells."""

    user: Annotated[str, doc("User of the key.")]
    tenant: Annotated[str, doc("Tenant of the key.")]
    scope: Annotated[str, doc("user or admin.")]
    key_id: Annotated[str, doc("Id of the key.")]
    permissions: Annotated[list[str], doc("What the key allows.")]


class ApiKey(Answer):
    """An API key without its secret."""

    id: Annotated[str, doc("Id of the key: k and 22 characters.")]
    name: Annotated[str, doc("Where the key is used; for people.")]
    user: Annotated[str, doc("User of the key.")]
    tenant: Annotated[str, doc("Tenant of the key.")]
    scope: Annotated[str, doc("user or admin.")]
    created: Annotated[Time, doc("When it was made.")]
    revoked: Annotated[Time | None, doc("When it was revoked; null while it works.")]
    key: Annotated[
        str | UnsetType, doc("The whole key. Only in the answer that makes it, and in replays of that answer.")
    ] = UNSET


class KeySession(Answer):
    """A session of a browser, as it is listed beside the keys."""

    id: Annotated[str, doc("Id of the session: s and 22 characters. `DELETE /v1/keys/{id}` ends it.")]
    key_id: Annotated[str, doc("Id of the key that it was made from; it ends with the key.")]
    user: Annotated[str, doc("User of the key.")]
    tenant: Annotated[str, doc("Tenant of the key.")]
    created: Annotated[Time, doc("When it began.")]
    used: Annotated[Time, doc("When it was used last, to the hour or so.")]
    expires: Annotated[Time, doc("When it ends if it is not used again.")]


class ListKeysReply(Answer):
    """API keys, and sessions of browsers."""

    keys: Annotated[list[ApiKey], doc("The caller's keys, revoked ones included; for admins the keys of all users.")]
    sessions: Annotated[list[KeySession], doc("Sessions that have not ended, of the same users.")]


def whoami(principal: Principal) -> KeyHolder:
    """The caller's identity."""
    return KeyHolder(
        user=principal.user,
        tenant=principal.tenant,
        scope=principal.scope,
        key_id=principal.key_id,
        permissions=sorted(PERMISSIONS[principal.scope]),
    )


async def list_keys(services: ApiServices, principal: Principal) -> ListKeysReply:
    """The caller's keys and sessions; for admins those of all users."""
    return ListKeysReply(
        keys=[_key(key) for key in await services.keys.list(principal)],
        sessions=[
            KeySession(
                id=session.id,
                key_id=session.key,
                user=session.user,
                tenant=session.tenant,
                created=as_time(session.created),
                used=as_time(session.used),
                expires=as_time(services.sessions.expires(session)),
            )
            for session in await services.sessions.visible(principal)
        ],
    )


async def create_key(
    services: ApiServices, principal: Principal, params: KeyParams, *, key: str | None
) -> Done[ApiKey]:
    """A new API key with its text, which only this answer and its replays hold. ``key``: the idempotency key.

    Raises InvalidRequest, PermissionDenied, IdempotencyMismatch.
    """
    new = await services.keys.create(
        principal, name=params.name, user=params.user, tenant=params.tenant, scope=params.scope, idempotency_key=key
    )
    return Done(replace(_key(new.key), key=new.text), new.replayed)


async def revoke_key(services: ApiServices, principal: Principal, key_id: str) -> None:
    """Ends the key, or the session of this id, within ``key_cache_s`` at every api. Raises NotFound."""
    if is_id(key_id, "s"):
        await services.sessions.end(principal, key_id)
    else:
        await services.keys.revoke(principal, key_id)


def _key(key: StoredKey) -> ApiKey:
    return ApiKey(
        id=key.id,
        name=key.name,
        user=key.user,
        tenant=key.tenant,
        scope=key.scope,
        created=as_time(key.created),
        revoked=as_time_or_none(key.revoked),
    )
