"""Secrets of tenants: list, set, delete. No answer has a value."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, SecretStr

from services.api.access import Principal
from services.api.answers import Answer, Time, as_time_or_none, doc
from services.api.params import Params
from services.api.services import ApiServices
from services.api.tenant_secrets import TenantSecret as StoredSecret


class OfTenantParams(Params):
    """Whose secrets."""

    tenant: str | None = Field(default=None, description="Tenant of the secrets; default: the caller's. Admins: any.")


class SecretParams(Params):
    """The values of a secret."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_max_length=None)
    values: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Key -> value: 1 to 16 keys, none of the values empty, all together at most 64 KiB. A key has 1 to "
        "64 letters, digits, '_', '.' or '-'. All keys of the secret are replaced.",
    )


class TenantSecret(Answer):
    """A secret without its values."""

    name: Annotated[str, doc("Name of the secret.")]
    keys: Annotated[list[str], doc("Its keys, sorted; without their values.")]
    created: Annotated[Time | None, doc("When it was created; null if it is damaged.")]
    changed: Annotated[Time | None, doc("When its values were set last; null if it is damaged.")]
    changed_by: Annotated[str, doc("User who set them: ada, or acme/ada of another tenant; empty if it is damaged.")]
    damaged: Annotated[bool, doc("It cannot be read: set it again.")]


class ListSecretsReply(Answer):
    """The secrets of a tenant."""

    secrets: Annotated[list[TenantSecret], doc("The tenant's secrets, by name.")]


async def list_secrets(services: ApiServices, principal: Principal, params: OfTenantParams) -> ListSecretsReply:
    """The tenant's secrets without their values. Raises PermissionDenied, InvalidRequest."""
    tenant = principal.acting_tenant(params.tenant)
    return ListSecretsReply(secrets=[_answer(secret) for secret in await services.secrets.list(tenant)])


async def set_secret(
    services: ApiServices, principal: Principal, name: str, params: OfTenantParams, secret: SecretParams
) -> TenantSecret:
    """Creates a secret, or replaces all of its keys. Raises InvalidRequest, PermissionDenied, Conflict."""
    tenant = principal.acting_tenant(params.tenant)
    values = {key: value.get_secret_value() for key, value in secret.values.items()}
    return _answer(await services.secrets.set(principal, tenant, name, values))


async def delete_secret(services: ApiServices, principal: Principal, name: str, params: OfTenantParams) -> None:
    """Removes a secret. Raises NotFound, PermissionDenied, InvalidRequest."""
    await services.secrets.delete(principal, principal.acting_tenant(params.tenant), name)


def _answer(secret: StoredSecret) -> TenantSecret:
    return TenantSecret(
        name=secret.name,
        keys=list(secret.keys),
        created=as_time_or_none(secret.created),
        changed=as_time_or_none(secret.changed),
        changed_by=secret.changed_by,
        damaged=secret.created is None,
    )
