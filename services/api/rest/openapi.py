"""The OpenAPI 3.1 document: the answer of each route, the problems that any route may give, and authentication."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import FastAPI, Path
from fastapi.openapi.utils import get_openapi

from services.api.answers import Answer, json_schemas
from services.api.rest.answers import PROBLEM
from services.api.rest.auth_middleware import COOKIE
from services.api.rest.permissions import public_routes

JobId = Annotated[str, Path(description="Id of the job: j and 22 characters.")]
_SCHEMA: Final = "#/components/schemas/{name}"
_PROBLEM_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "title": "Problem",
    "description": "An error (RFC 9457).",
    "required": ["type", "title", "status", "code", "detail", "errors", "trace_id"],
    "properties": {
        "type": {"type": "string", "description": "URN of the error.", "examples": ["urn:weft:error:not-found"]},
        "title": {"type": "string", "description": "The code in words."},
        "status": {"type": "integer", "description": "HTTP status."},
        "code": {"type": "string", "description": "Stable code of the error.", "examples": ["not-found"]},
        "detail": {"type": "string", "description": "What is wrong, and what to do."},
        "errors": {
            "type": "array",
            "description": "Each wrong field of the request; empty if no field is to blame.",
            "items": {
                "type": "object",
                "required": ["pointer", "message"],
                "properties": {
                    "pointer": {
                        "type": "string",
                        "description": "JSON pointer (RFC 6901) into the body, or /query/NAME, or /header/NAME.",
                    },
                    "message": {"type": "string", "description": "What is wrong with the field."},
                    "hint": {"type": "string", "description": "What to write instead; absent if unknown."},
                },
            },
        },
        "trace_id": {"type": "string", "description": "Finds the request in the logs of the services."},
    },
}
_PROBLEMS: Final = {
    code: {"description": text, "content": {PROBLEM: {"schema": {"$ref": _SCHEMA.format(name="Problem")}}}}
    for code, text in (("4XX", "The request is wrong"), ("5XX", "The service failed or is away"))
}


def response(description: str, *answers: type[Answer]) -> dict[str, Any]:
    """The documentation of a response whose body is one of these answers."""
    references = [{"$ref": _SCHEMA.format(name=kind.__name__)} for kind in answers]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def ok(kind: type[Answer], description: str, status: int = 200, **responses: Any) -> dict[str, Any]:
    """Arguments of a route that answers with ``kind``. Routes serialise their answers themselves, so FastAPI gets only
    the documentation. ``responses``: further ones by their status.
    """
    return {
        "status_code": status,
        "response_model": None,
        "responses": {status: response(description, kind), **responses},
    }


def document(app: FastAPI) -> dict[str, Any]:
    """The document of the app's routes."""
    openapi = get_openapi(title=app.title, version=app.version, routes=app.routes, openapi_version="3.1.0")
    components = openapi.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas.update(json_schemas(_SCHEMA))
    schemas["Problem"] = _PROBLEM_SCHEMA
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key, weft_<id>_<secret>"},
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": COOKIE,
            "description": "A browser's session; changes also need the header X-Weft-CSRF",
        },
    }
    openapi["security"] = [{"key": []}, {"session": []}]
    public = {(method.lower(), route.path) for route in public_routes(app) for method in route.methods or ()}
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            operation["responses"].pop("422", None)
            operation["responses"].update(_PROBLEMS)
            if (method, path) in public:
                operation["security"] = []
    return openapi
