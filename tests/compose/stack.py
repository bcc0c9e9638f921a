"""docker-compose.yml started on the test bed's Docker engine, by `docker compose` itself."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from scripts import images
from services.local.layout import listen_lasting
from tests.compose.stores import build_stores
from tests.testbed.docker.engine import Engine, Say, engine
from tests.testbed.go import go_build
from tests.testbed.kubernetes import forwarder
from tests.waiting import eventually
from weft import Client

ROOT: Final = Path(__file__).parents[2]
COMPOSE_FILE: Final = ROOT / "docker-compose.yml"
OVERRIDE: Final = Path(__file__).with_name("override.yml")
COMPOSE_MODULE: Final = Path(__file__).with_name("modules") / "compose"
SERVICES: Final = ("api", "lcm", "guardian", "metrics", "worker", "node")
STORES: Final = ("mongodb", "etcd", "rabbitmq", "s3")
_DOT_ENV: Final = {"WEFT_HTTP_ALLOW": "s3"}


class Stack:
    """The installation. ``url``: where this machine reaches the api."""

    def __init__(self, on: Engine, program: Path, url: str) -> None:
        self.engine, self.url, self._program = on, url, program

    def compose(self, *arguments: str, stdin: bytes | None = None, variables: Mapping[str, str] | None = None) -> str:
        """Runs `docker compose` with the repository's file; returns its output. RuntimeError if it fails.

        ``variables``: those of .env.
        """
        files = [f"--file={COMPOSE_FILE}", f"--file={OVERRIDE}", f"--project-directory={ROOT}"]
        return self.engine.call(
            [str(self._program), *files, "--ansi=never", "--progress=quiet", *arguments],
            stdin=stdin,
            # Nothing of the environment of the tests, and no .env of this checkout.
            variables={"COMPOSE_ENV_FILES": os.devnull, **_DOT_ENV, **(variables or {})},
        )

    def up(self) -> None:
        self.compose("up", "--wait", "--wait-timeout", "600")

    @property
    def admin_key(self) -> str:
        return self.compose("exec", "-T", "api", "cat", "/var/lib/weft/secrets/=admin-key").strip()

    def client(self) -> Client:
        return Client(self.url, self.admin_key)

    def container(self, service: str) -> dict[str, Any]:
        """What the engine knows of the container of a service."""
        name = self.compose("ps", "--all", "--quiet", service).strip()
        return dict(json.loads(self.engine.docker("container", "inspect", name))[0])

    def kill(self, service: str) -> int:
        """Kills the first process of the container, as a crash does: the engine starts it again. Returns its pid."""
        return eventually(lambda: self._killed(service))

    def _killed(self, service: str) -> int:
        """The pid that was killed; 0 if there was none: it has ended by itself, and the engine starts it anew."""
        pid = int(self.container(service)["State"]["Pid"])
        if pid:
            try:
                self.engine.machine.call("kill", "-KILL", str(pid))
            except RuntimeError:
                return 0
        return pid

    def remove(self) -> None:
        """Removes containers, networks and volumes."""
        self.compose("--profile=*", "down", "--volumes", "--timeout=1")


@contextmanager
def stack(say: Say) -> Generator[Stack]:
    """The engine and everything that `docker compose up` needs; nothing of the installation yet. All is removed."""
    program = go_build("docker-compose", COMPOSE_MODULE, say)
    with engine(say) as running:
        build_stores(running, say)
        images.build(images.Image.read(images.IMAGES / "platform"), running)
        with listen_lasting("127.0.0.1") as listener:
            script = str(Path(forwarder.__file__))
            running.machine.spawn(
                "forwarder",
                [sys.executable, "-S", "-E", script, str(listener.fileno()), "127.0.0.1", "8080"],
                network_only=True,
                descriptors=[listener.fileno()],
            )
            installed = Stack(running, program, f"http://127.0.0.1:{listener.getsockname()[1]}")
            installed.remove()  # of a run that was killed
            try:
                yield installed
            finally:
                installed.remove()
