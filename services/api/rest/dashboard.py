"""The dashboard's files: one page for all of its addresses, and assets whose names change with their content.

The files are read once, and again when ``index.html`` changes. Only files that are in the folder then can be requested,
so no path leads out of it.
"""

from __future__ import annotations

import gzip
import mimetypes
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request, Response

from services.api.rest.auth_middleware import origins_of
from services.api.rest.permissions import PUBLIC, Services
from services.api.services import ApiServices
from services.core.domain.errors import NotFound

_NOT_BUILT: Final = """The dashboard is not built.

In a checkout of Weft, run `make dashboard` once; it needs no restart of the platform.
The API is at /v1 (its description: /openapi.json), and `weft --help` shows the command line.
"""
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; worker-src 'self'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEAD: Final = "<head>"
_PACKAGED: Final = Path(__file__).parents[2] / "dashboard" / "dist"
_INDEX: Final = "index.html"
_COMPRESSED: Final = ("text/", "application/javascript", "application/json", "image/svg+xml")
_IMMUTABLE: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file in memory."""

    content: bytes
    kind: str
    """Its media type."""
    compressed: bytes | None
    """The same with gzip; None if that is not smaller."""


@dataclass(frozen=True, slots=True)
class Built:
    """The built application."""

    changed_ns: int
    """When its page was written."""
    page: str
    assets: dict[str, Asset]
    """By path below ``assets/``."""


def read_built(folder: Path) -> Built | None:
    """The application in the folder; None if there is none."""
    try:
        changed_ns = (folder / _INDEX).stat().st_mtime_ns
        page = (folder / _INDEX).read_text()
    except FileNotFoundError:
        return None
    root = folder / "assets"
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return Built(changed_ns, page, {path.relative_to(root).as_posix(): _asset(path) for path in files})


async def _same_host(request: Request) -> None:
    """Raises PermissionDenied for a host that is not the api's."""
    origins_of(request.scope).check_host(request.headers)


def _built(request: Request, services: Services) -> Built | None:
    known: Built | None = getattr(request.app.state, "dashboard", None)
    if known is None or _changed_ns(services) != known.changed_ns:
        known = request.app.state.dashboard = read_built(_folder(services))
    return known


router = APIRouter(include_in_schema=False, dependencies=[PUBLIC, Depends(_same_host)])
BuiltApp = Annotated[Built | None, Depends(_built)]


@router.api_route("/", methods=["GET", "HEAD"])
async def get_root(request: Request, built: BuiltApp) -> Response:
    return _page(request, built)


@router.api_route("/ui", methods=["GET", "HEAD"])
async def get_ui(request: Request, built: BuiltApp) -> Response:
    return _page(request, built)


@router.api_route("/ui/{path:path}", methods=["GET", "HEAD"])
async def get_page(request: Request, built: BuiltApp) -> Response:
    return _page(request, built)


@router.api_route("/assets/{path:path}", methods=["GET", "HEAD"])
async def get_asset(request: Request, path: str, built: BuiltApp) -> Response:
    asset = built.assets.get(path) if built else None
    if asset is None:
        raise NotFound("the dashboard has no such file; load the page again")
    content, headers = asset.content, {"Cache-Control": _IMMUTABLE, "Vary": "Accept-Encoding"}
    if asset.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["Content-Encoding"] = asset.compressed, "gzip"
    return Response(content, headers=headers, media_type=asset.kind)


def _page(request: Request, built: Built | None) -> Response:
    if built is None:
        return Response(_NOT_BUILT, media_type="text/plain", headers={"Cache-Control": "no-cache"})
    nonce = secrets.token_urlsafe(16)
    base = f"{origins_of(request.scope).prefix_of(request.headers)}/"
    added = f'{_HEAD}<base href="{base}"><meta property="csp-nonce" nonce="{nonce}">'
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": _POLICY.format(nonce=nonce)}
    return Response(built.page.replace(_HEAD, added, 1), media_type="text/html", headers=headers)


def _folder(services: ApiServices) -> Path:
    return services.settings.dashboard_files or _PACKAGED


def _changed_ns(services: ApiServices) -> int:
    try:
        return (_folder(services) / _INDEX).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _asset(path: Path) -> Asset:
    content, kind = path.read_bytes(), mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    kind = {"text/javascript": "application/javascript"}.get(kind, kind)
    compressed = gzip.compress(content, 9, mtime=0) if kind.startswith(_COMPRESSED) else content
    return Asset(content, kind, compressed if len(compressed) < len(content) else None)
