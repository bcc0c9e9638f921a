"""The api as a process of its own, to be killed: it keeps its home, its stores and its port over all its lives."""

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

from services.core.adapters.folder.secrets import FolderSecretStore
from tests.testbed.server import free_port
from tests.waiting import until

_STARTS = 10


class ApiProcess:
    """``environment``: settings (``WEFT_*``). Several may share a home, started one after the other."""

    def __init__(self, home: Path, environment: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.address = f"127.0.0.1:{free_port()}"
        self._addresses = {
            "api": self.address,
            "api-grpc": f"127.0.0.1:{free_port()}",
            "api-ops": f"127.0.0.1:{free_port()}",
        }
        self._environment = {"WEFT_HINTS": "drop", **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.home / f"api-{self.address.rpartition(':')[2]}.log"

    def spawn(self) -> None:
        """Returns at once; see ``ready``."""
        (self.home / "run").mkdir(parents=True, exist_ok=True)
        (self.home / "run" / "addresses.json").write_text(json.dumps(self._addresses))
        environment = {**os.environ, **self._environment, "WEFT_HOME": str(self.home)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "services.api"], env=environment, stderr=log)

    async def ready(self) -> None:
        """Returns when it answers. As by the supervisor it is started again where its store was too slow for it."""
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
        """The administrator's."""
        found = await FolderSecretStore(self.home / "secrets").get("admin-key")
        assert found is not None
        return found.decode()

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
    """So many, on one home; they serve."""
    processes = [ApiProcess(home, environment) for _ in range(count)]
    try:
        for one in processes:
            one.spawn()
            await one.ready()
        yield processes
    finally:
        for one in processes:
            await asyncio.to_thread(one.kill)
