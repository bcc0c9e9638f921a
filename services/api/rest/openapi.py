"""The OpenAPI 3.1 document: each route's own answer, the problems that any may give, and how to authenticate."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from services.api.rest.answers import PROBLEM

_PROBLEM_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "title": "Problem",
    "description": "RFC 9457. `code` is stable; `errors` point into what was sent.",
    "required": ["type", "title", "status", "code", "detail", "errors", "trace_id"],
    "properties": {
        "type": {"type": "string", "examples": ["urn:weft:error:not-found"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "message"],
                "properties": {
                    "pointer": {"type": "string", "description": "RFC 6901, into the document that was sent"},
                    "message": {"type": "string"},
                    "hint": {"type": "string"},
                },
            },
        },
        "trace_id": {"type": "string"},
    },
}
_PROBLEMS: Final = {
    code: {"description": text, "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    for code, text in (("4XX", "What was wrong with the request"), ("5XX", "What was wrong with the service"))
}


def ok(shape: Any, description: str, status: int = 200, **more: Any) -> dict[str, Any]:
    """Arguments of a route whose answer has this shape (routes write their answers themselves)."""
    return {
        "status_code": status,
        "response_model": None,
        "responses": {status: {"model": shape, "description": description}, **more},
    }


def document(app: FastAPI, *, public: frozenset[str]) -> dict[str, Any]:
    out = get_openapi(title=app.title, version=app.version, routes=app.routes, openapi_version="3.1.0")
    components = out.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = _PROBLEM_SCHEMA
    for fastapis_own in ("HTTPValidationError", "ValidationError"):
        schemas.pop(fastapis_own, None)
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key, weft_<id>_<secret>"}
    }
    out["security"] = [{"key": []}]
    for path, operations in out["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"].update(_PROBLEMS)
            if path in public:
                operation["security"] = []
    return out
