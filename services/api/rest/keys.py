"""Keys over HTTP: who am I, which keys are there, make one, end one."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from services.api import actions
from services.api.asked import KeyAsked
from services.api.idempotency import checked_key
from services.api.rest.answers import answer, replayable
from services.api.rest.bodies import body_schema, read_model
from services.api.rest.openapi import ok
from services.api.rest.permissions import KeyReader, KeyWriter, Uses, Visitor
from services.api.shapes import KeyJson, KeysJson, WhoJson

router = APIRouter(prefix="/v1", tags=["keys"])


@router.get("/whoami", **ok(WhoJson, "The key's holder"))
async def whoami(who: Visitor) -> Response:
    return answer(actions.whoami(who))


@router.get("/keys", **ok(KeysJson, "One's own keys; an admin's answer has everybody's"))
async def list_keys(uses: Uses, who: KeyReader) -> Response:
    return answer(await actions.list_keys(uses, who))


@router.post("/keys", **ok(KeyJson, "The key, whose text is shown this once", 201), openapi_extra=body_schema(KeyAsked))
async def create_key(uses: Uses, who: KeyWriter, request: Request) -> Response:
    key = checked_key(request.headers.get("idempotency-key"))
    made = await actions.create_key(uses, who, await read_model(request, KeyAsked), key=key)
    return answer(made.answer, status=201, headers=replayable(made.replayed, {"Cache-Control": "no-store"}))


@router.delete("/keys/{key_id}", status_code=204, responses={204: {"description": "It no longer works"}})
async def revoke_key(uses: Uses, who: KeyWriter, key_id: str) -> Response:
    await actions.revoke_key(uses, who, key_id)
    return Response(status_code=204)
