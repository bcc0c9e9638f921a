"""The real api over uvicorn on a free port, with SQLite and folders; other services are those that the test starts."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client import CollectorRegistry, generate_latest

from services.api.grpc.server import serve as serve_grpc
from services.api.rest.server import rest_server
from services.api.services import ApiServices
from services.api.settings import ApiSettings
from services.api.wiring import open_services
from services.core.adapters.folder.objects import FolderObjectStore
from services.core.adapters.folder.secrets import FolderSecretStore
from services.core.domain.job import Job
from services.core.ports.job_store import JobStore
from services.core.runtime.address import Address
from tests.testbed.server import free_port
from tests.waiting import HANG_S, until

SPEC: dict[str, Any] = {"name": "digits", "command": "python train.py"}


@dataclass
class Api:
    url: str
    settings: ApiSettings
    services: ApiServices
    store: JobStore
    registry: CollectorRegistry
    admin_key: str
    stopping: asyncio.Event
    grpc: str = ""
    """``host:port`` of gRPC."""
    admin: httpx2.AsyncClient = field(init=False)

    def client(self, key: str | None, **options: Any) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=HANG_S, trust_env=False, **options)

    async def key(self, user: str, tenant: str) -> str:
        """A new user's key."""
        made = await self.admin.post("/v1/keys", json={"name": "test", "user": user, "tenant": tenant})
        assert made.status_code == 201, made.text
        return str(made.json()["key"])

    async def submit(self, spec: Mapping[str, Any] = SPEC, **options: Any) -> dict[str, Any]:
        made = await self.admin.post("/v1/jobs", json=dict(spec), **options)
        assert made.status_code == 201, made.text
        return dict(made.json())

    async def change(self, job_id: str, change: Callable[[Job], Job]) -> Job:
        """Replaces the job's document, as a Guardian or the dispatcher does."""
        job = await self.store.get(job_id)
        assert job is not None
        return await self.store.replace(job, change(job))

    async def first_line(self, request: bytes) -> bytes:
        """The status line of the response to these bytes; the rest of the request is never sent."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(request)
            return (await asyncio.wait_for(reader.readline(), HANG_S)).strip()
        finally:
            writer.close()
            await writer.wait_closed()

    def measured(self) -> str:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry).decode()


@asynccontextmanager
async def running_api(
    home: Path,
    addresses: Mapping[str, str] | None = None,
    before: Callable[[], Awaitable[object]] | None = None,
    **settings: Any,
) -> AsyncGenerator[Api]:
    """``addresses``: of the other services. ``before``: runs before the api opens its home."""
    address = f"127.0.0.1:{free_port()}"
    (home / "run").mkdir(parents=True, exist_ok=True)
    (home / "run" / "addresses.json").write_text(json.dumps({"api": address, **(addresses or {})}))
    grpc = f"127.0.0.1:{free_port()}"
    options: dict[str, Any] = {"home": home, "hints": "drop", "follow_poll_s": 0.02, **settings}
    loaded = ApiSettings(**options)
    FolderObjectStore.make(home / "objects")
    if before is not None:
        await before()
    stopping, registry = asyncio.Event(), CollectorRegistry()
    async with open_services(loaded, stopping=stopping, registry=registry) as (services, store):
        server = rest_server(services, Address(address))
        serving = asyncio.gather(server.serve(stopping), serve_grpc(grpc, services))
        await until(lambda: server.started or serving.done())

        async def grpc_serves() -> bool:
            return serving.done() or await _serves(grpc, registry)

        await until(grpc_serves)
        key = (await FolderSecretStore(home / "secrets").get("admin-key") or b"").decode()
        api = Api(f"http://{address}", loaded, services, store, registry, key, stopping, grpc)
        async with api.client(key) as api.admin:
            try:
                yield api
            finally:
                stopping.set()
                await serving


async def _serves(grpc: str, registry: CollectorRegistry) -> bool:
    """Whether the server accepts connections. The one that tried it has ended and is not counted any more."""
    host, _, port = grpc.partition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.write_eof()
    await reader.read()
    writer.close()
    await until(lambda: registry.get_sample_value("weft_api_connections", {"listener": "grpc"}) == 0)
    return True


def a_zip(files: Mapping[str, bytes | str] | None = None) -> bytes:
    """A zip archive of these files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (files or {"train.py": "print('hello')\n"}).items():
            archive.writestr(name, content)
    return out.getvalue()
