"""Secrets of tenants over HTTP: list, set, delete."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request, Response

from services.api.rest.answers import answer
from services.api.rest.bodies import body_schema, read_model
from services.api.rest.openapi import ok
from services.api.rest.permissions import SecretReader, SecretWriter, Services
from services.api.tenant_secrets import MOST_BYTES
from services.api.use_cases import tenant_secrets
from services.api.use_cases.tenant_secrets import ListSecretsReply, OfTenantParams, SecretParams, TenantSecret

router = APIRouter(prefix="/v1", tags=["secrets"])
SecretName = Annotated[
    str, Path(description="Name of the secret: 1 to 63 lower-case letters, digits or '-' (a DNS label).")
]
_MAX_BODY: Final = 8 * MOST_BYTES
"""JSON may write a byte of a value as six characters."""


@router.get("/secrets", **ok(ListSecretsReply, "The tenant's secrets, without their values"))
async def list_secrets(
    services: Services, principal: SecretReader, params: Annotated[OfTenantParams, Query()]
) -> Response:
    return answer(await tenant_secrets.list_secrets(services, principal, params))


@router.put(
    "/secrets/{name}",
    **ok(TenantSecret, "The secret as it is now, without its values"),
    openapi_extra=body_schema(SecretParams),
)
async def set_secret(
    services: Services,
    principal: SecretWriter,
    name: SecretName,
    params: Annotated[OfTenantParams, Query()],
    request: Request,
) -> Response:
    secret = await read_model(request, SecretParams, limit=_MAX_BODY)
    return answer(await tenant_secrets.set_secret(services, principal, name, params, secret))


@router.delete("/secrets/{name}", status_code=204, responses={204: {"description": "It is removed"}})
async def delete_secret(
    services: Services, principal: SecretWriter, name: SecretName, params: Annotated[OfTenantParams, Query()]
) -> Response:
    await tenant_secrets.delete_secret(services, principal, name, params)
    return Response(status_code=204)
