"""API keys over HTTP: the caller's identity, list, create, revoke."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from services.api.idempotency import checked_key
from services.api.rest.answers import answer, replay_headers
from services.api.rest.bodies import body_schema, read_model
from services.api.rest.openapi import ok
from services.api.rest.permissions import KeyReader, KeyWriter, Services, Visitor
from services.api.use_cases import keys
from services.api.use_cases.keys import ApiKey, KeyHolder, KeyParams, ListKeysReply

router = APIRouter(prefix="/v1", tags=["keys"])
KeyId = Annotated[str, Path(description="Id of the key (k and 22 characters), or of a session (s and 22).")]


@router.get("/whoami", **ok(KeyHolder, "The caller"))
async def whoami(principal: Visitor) -> Response:
    return answer(keys.whoami(principal))


@router.get("/keys", **ok(ListKeysReply, "The caller's keys; for admins the keys of all users"))
async def list_keys(services: Services, principal: KeyReader) -> Response:
    return answer(await keys.list_keys(services, principal))


@router.post(
    "/keys",
    **ok(ApiKey, "The key with its text, which only this answer has", 201),
    openapi_extra=body_schema(KeyParams),
)
async def create_key(services: Services, principal: KeyWriter, request: Request) -> Response:
    idempotency_key = checked_key(request.headers.get("idempotency-key"))
    done = await keys.create_key(services, principal, await read_model(request, KeyParams), key=idempotency_key)
    headers = replay_headers(replayed=done.replayed, headers={"Cache-Control": "no-store"})
    return answer(done.answer, status=201, headers=headers)


@router.delete("/keys/{key_id}", status_code=204, responses={204: {"description": "It no longer works"}})
async def revoke_key(services: Services, principal: KeyWriter, key_id: KeyId) -> Response:
    await keys.revoke_key(services, principal, key_id)
    return Response(status_code=204)
