"""Keys over HTTP: who am I, which keys are there, make one, end one."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from services.api import use_cases
from services.api.idempotency import checked_key
from services.api.params import KeyParams
from services.api.rest.answers import answer, replayable
from services.api.rest.bodies import body_schema, read_model
from services.api.rest.openapi import ok
from services.api.rest.permissions import KeyReader, KeyWriter, Services, Visitor
from services.api.schemas import KeyJson, KeysJson, WhoJson

router = APIRouter(prefix="/v1", tags=["keys"])


@router.get("/whoami", **ok(WhoJson, "The key's holder"))
async def whoami(principal: Visitor) -> Response:
    return answer(use_cases.whoami(principal))


@router.get("/keys", **ok(KeysJson, "One's own keys; an admin's answer has everybody's"))
async def list_keys(services: Services, principal: KeyReader) -> Response:
    return answer(await use_cases.list_keys(services, principal))


@router.post(
    "/keys", **ok(KeyJson, "The key, whose text is shown this once", 201), openapi_extra=body_schema(KeyParams)
)
async def create_key(services: Services, principal: KeyWriter, request: Request) -> Response:
    key = checked_key(request.headers.get("idempotency-key"))
    made = await use_cases.create_key(services, principal, await read_model(request, KeyParams), key=key)
    return answer(made.answer, status=201, headers=replayable(made.replayed, {"Cache-Control": "no-store"}))


@router.delete("/keys/{key_id}", status_code=204, responses={204: {"description": "It no longer works"}})
async def revoke_key(services: Services, principal: KeyWriter, key_id: str) -> Response:
    await use_cases.revoke_key(services, principal, key_id)
    return Response(status_code=204)
