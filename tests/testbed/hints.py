"""The path of a hint in tests: a real broker, a real worker process, and real services that receive it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

import grpc.aio
from kombu.messaging import Producer

from services.core.adapters.celery.app import QUEUE, TASK, make_app
from services.core.adapters.celery.broker import RABBITMQ, Broker
from services.core.adapters.rpc.client import Credential, connect, translating
from services.core.adapters.rpc.server import serve
from services.core.adapters.rpc.transport import Listening
from services.core.gen.weft.v1 import control_pb2, control_pb2_grpc
from services.core.ports.hints import Hints
from services.core.runtime.address import Address
from services.core.runtime.home import Home
from services.core.runtime.operations_client import read_operations
from services.core.runtime.settings import Settings
from tests.testbed.identities import guard, install, operations_headers
from tests.testbed.redis import Redis
from tests.testbed.server import free_address
from tests.waiting import HANG_S, until
from weft.http_exchange import Answer


class Server(Protocol):
    """A broker that a test can kill and pause: RabbitMQ, Redis."""

    @property
    def url(self) -> str: ...

    def start(self) -> None: ...

    async def ready(self) -> None: ...

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Carrier:
    """A broker of any kind, as one home uses it. The constructor empties it."""

    def __init__(self, home: Path, server: Server | None = None) -> None:
        """``server``: None for the folder in the home."""
        self.home, self._server = home, server
        self.url = server.url if server else "filesystem://"
        self.settings = Settings(home=home, broker_url=self.url)
        self.empty()

    def empty(self) -> None:
        if isinstance(self._server, Redis):
            self._server.empty()
        with self.channel() as channel:
            channel.queue_purge(QUEUE)

    @property
    def server(self) -> Server:
        assert self._server is not None, "a folder is no server"
        return self._server

    @property
    def kind(self) -> str:
        return Broker.of(self.settings).kind

    def waiting(self) -> int:
        """Returns the number of messages that no worker has received."""
        with self.channel() as channel:
            return int(channel.queue_declare(QUEUE, passive=self.kind == RABBITMQ).message_count)

    def publish(self, body: str | bytes, headers: Mapping[str, Any], content_type: str = "application/json") -> None:
        """Sends any message by the broker's own library."""
        with self.channel() as channel:
            producer: Any = Producer
            producer(channel).publish(
                body, routing_key=QUEUE, headers=headers, content_type=content_type, content_encoding="utf-8"
            )

    def inject(self, text: bytes) -> None:
        """Writes raw bytes into the broker, past all libraries; into RabbitMQ, which has no such way, as a message."""
        if isinstance(self._server, Redis):
            self._server.push(QUEUE, text)
        elif self._server is None:
            hidden = self.home / "broker" / "queue" / ".injected"
            hidden.write_bytes(text)
            hidden.rename(hidden.with_name(f"{time.monotonic_ns():020}_injected.{QUEUE}.msg"))
        else:
            self.publish(text, {"task": TASK, "id": "1"})

    @contextmanager
    def channel(self, *, declared: bool = True) -> Generator[Any]:
        """Yields a kombu channel. ``declared``: the queue exists as Weft declares it."""
        app = make_app(Broker.of(self.settings))
        with app.connection_for_write() as connection, connection.channel() as channel:
            if declared:
                app.amqp.queues[QUEUE].bind(channel).declare()
            yield channel
        app.close()


class Nudged(control_pb2_grpc.ControlServicer):
    """Records hints. ``on_nudge(job_id)`` is called before the answer is sent."""

    def __init__(self) -> None:
        self.on_nudge: Callable[[str], None] | None = None
        self.heard: list[tuple[str, str]] = []
        self.traces: list[str] = []

    async def Nudge(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.heard.append((request.topic, request.job_id))
        self.traces.append(dict(context.invocation_metadata()).get("traceparent", ""))
        if self.on_nudge is not None:
            self.on_nudge(request.job_id)
        return control_pb2.NudgeReply()


def add_nudged(server: grpc.aio.Server) -> None:
    """Makes a server take hints."""
    control_pb2_grpc.add_ControlServicer_to_server(Nudged(), server)


async def nudge(address: Address | str, caller: Credential) -> None:
    """Sends a hint over a connection of its own. Raises as the server answers."""
    channel = connect(address, caller)
    try:
        with translating("lcm"):
            await control_pb2_grpc.ControlStub(channel).Nudge(control_pb2.NudgeRequest(topic="submitted"), timeout=30)
    finally:
        await channel.close()


class Service:
    """A real server of weft.v1.Control: lcm or guardian."""

    def __init__(self, name: str, address: Address) -> None:
        self.name, self.address, self.nudged = name, address, Nudged()
        self._server: Listening | None = None

    async def start(self) -> None:
        def register(server: grpc.aio.Server) -> None:
            control_pb2_grpc.add_ControlServicer_to_server(self.nudged, server)

        self._server = await serve(self.address, guard(self.name), register)

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(None)


async def arrives(hints: Hints, service: Service, topic: str, job_id: str) -> None:
    """Sends the hint until the service has received it: on a busy machine a hint may be lost."""

    async def heard() -> bool:
        await hints.send(topic, job_id)
        before = len(service.nudged.heard)
        with suppress(AssertionError):
            await until(lambda: len(service.nudged.heard) > before, timeout=1)
        return (topic, job_id) in service.nudged.heard

    await until(heard)


class Worker:
    """A worker process, as the supervisor starts it."""

    def __init__(self, home: Path, broker_url: str = "filesystem://") -> None:
        self.home, self.log = Home(home), home / "worker.log"
        with self.log.open("ab") as log:
            self._begin = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.lcm.worker"],
                env={**os.environ, "WEFT_HOME": str(home), "WEFT_LOG_LEVEL": "debug", "WEFT_BROKER_URL": broker_url},
                cwd="/",
                stdout=log,
                stderr=log,
            )

    def lines(self) -> list[dict[str, Any]]:
        """Returns the entries of its log. A line that it is still writing is none yet."""
        with self.log.open("rb") as log:
            log.seek(self._begin)
            return [json.loads(line) for line in log.read().split(b"\n")[:-1]]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == name]

    def not_ready(self) -> str:
        """Returns the reason from its operations address; empty if it is ready."""
        try:
            answer = self._ask("readyz")
        except OSError as error:
            return str(error) or type(error).__name__
        return "" if answer.status == HTTPStatus.OK else str(json.loads(answer.body)["failing"])

    async def ready_counter(self, name: str) -> float:
        """Waits until the worker is ready, then returns ``counter``."""
        await until(lambda: self.not_ready() == "")
        return self.counter(name)

    def counter(self, name: str) -> float:
        """Returns the sum of a Prometheus counter over its labels."""
        values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", self._ask("metrics").body.decode(), re.MULTILINE)
        return sum(float(value) for value in values)

    def _ask(self, path: str) -> Answer:
        return read_operations(
            self.home.address("worker-ops"), f"/{path}", timeout_s=HANG_S, headers=operations_headers("worker")
        )

    def end(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.process.wait()


def lay_out(home: Path) -> Path:
    """Makes the folder of an installation, with the files that a worker needs."""
    (home / "run").mkdir(parents=True)
    addresses = {name: free_address() for name in ("lcm", "guardian", "worker-ops")}
    (home / "run" / "addresses.json").write_text(json.dumps(addresses))
    install(home)
    return home
