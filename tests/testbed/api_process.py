"""The api as a process that can be killed. It keeps its home, stores and ports over restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import httpx2

from services.core.adapters.folder.objects import FolderObjectStore
from services.core.adapters.folder.secrets import FolderSecretStore
from tests.testbed.server import free_address, free_port
from tests.waiting import until

_STARTS = 10


class ApiProcess:
    """``environment``: settings (``WEFT_*``). Several processes may share a home; start them one after the other."""

    def __init__(self, home: Path, environment: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.address = f"127.0.0.1:{free_port()}"
        self._addresses = {
            "api": self.address,
            "api-grpc": f"127.0.0.1:{free_port()}",
            "api-inner": free_address(),
            "api-ops": free_address(),
        }
        self._environment = {"WEFT_HINTS": "drop", **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def grpc_address(self) -> str:
        return self._addresses["api-grpc"]

    @property
    def operations_address(self) -> str:
        return self._addresses["api-ops"]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.home / f"api-{self.address.rpartition(':')[2]}.log"

    def spawn(self) -> None:
        """Starts the process; ``ready`` waits for it."""
        (self.home / "run").mkdir(parents=True, exist_ok=True)
        FolderObjectStore.make(self.home / "objects")
        (self.home / "run" / "addresses.json").write_text(json.dumps(self._addresses))
        environment = {**os.environ, **self._environment, "WEFT_HOME": str(self.home)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "services.api"], env=environment, stderr=log)

    async def ready(self) -> None:
        """Returns when it answers. Like the supervisor, restarts a process that ended because its store was slow."""
        starts = 1

        async def answers() -> bool:
            nonlocal starts
            assert self._process is not None
            if self._process.poll() is not None:
                starts += 1
                assert starts <= _STARTS, self.log.read_text()[-2000:]
                self.spawn()
            with contextlib.suppress(httpx2.TransportError):
                return (await client.get("/v1/version")).status_code == 200
            return False

        async with httpx2.AsyncClient(base_url=self.url, trust_env=False) as client:
            await until(answers, timeout=180)

    async def key(self) -> str:
        """The administrator's key."""
        key = await FolderSecretStore(self.home / "secrets").get("admin-key")
        assert key is not None
        return key.decode()

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.asynccontextmanager
async def api_processes(
    home: Path, count: int, environment: Mapping[str, str] | None = None
) -> AsyncGenerator[list[ApiProcess]]:
    """``count`` processes on one home; all are ready."""
    processes = [ApiProcess(home, environment) for _ in range(count)]
    try:
        for process in processes:
            process.spawn()
            await process.ready()
        yield processes
    finally:
        for process in processes:
            await asyncio.to_thread(process.kill)
