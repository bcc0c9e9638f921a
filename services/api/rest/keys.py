"""Keys over HTTP: who am I, which keys are there, make one, end one."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict

from services.api.access import PERMISSIONS
from services.api.idempotency import checked_key
from services.api.rest.answers import answer
from services.api.rest.bodies import body_schema, read_model
from services.api.rest.openapi import ok
from services.api.rest.permissions import KeyReader, KeyWriter, Uses, Visitor
from services.api.shapes import KeyJson, KeysJson, WhoJson
from services.api.writing import key_json

router = APIRouter(prefix="/v1", tags=["keys"])


class NewKey(BaseModel):
    """What is left out is the caller's own; the scope is user."""

    model_config = ConfigDict(extra="forbid")
    name: str = ""
    user: str | None = None
    tenant: str | None = None
    scope: str | None = None


@router.get("/whoami", **ok(WhoJson, "The key's holder"))
async def whoami(who: Visitor) -> Response:
    return answer(
        {
            "user": who.user,
            "tenant": who.tenant,
            "scope": who.scope,
            "key_id": who.key_id,
            "permissions": sorted(PERMISSIONS[who.scope]),
        }
    )


@router.get("/keys", **ok(KeysJson, "One's own keys; an admin's answer has everybody's"))
async def list_keys(uses: Uses, who: KeyReader) -> Response:
    return answer({"keys": [key_json(key) for key in await uses.keys.list(who)]})


@router.post("/keys", **ok(KeyJson, "The key, whose text is shown this once", 201), openapi_extra=body_schema(NewKey))
async def create_key(uses: Uses, who: KeyWriter, request: Request) -> Response:
    idempotency_key = checked_key(request.headers.get("idempotency-key"))
    wanted = await read_model(request, NewKey)
    made = await uses.keys.create(
        who, name=wanted.name, user=wanted.user, tenant=wanted.tenant, scope=wanted.scope,
        idempotency_key=idempotency_key,
    )  # fmt: skip
    headers = {"Cache-Control": "no-store", **({"Idempotency-Replayed": "true"} if made.replayed else {})}
    return answer({**key_json(made.key), "key": made.text}, status=201, headers=headers)


@router.delete("/keys/{key_id}", status_code=204, responses={204: {"description": "It no longer works"}})
async def revoke_key(uses: Uses, who: KeyWriter, key_id: str) -> Response:
    await uses.keys.revoke(who, key_id)
    return Response(status_code=204)
