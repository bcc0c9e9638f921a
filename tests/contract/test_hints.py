"""Hints, from a service through a real broker and a real worker process to the service they are for."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import structlog

from services.core.adapters.celery import filesystem
from services.core.adapters.celery.app import Broker, make_app, send
from services.core.adapters.celery.hints import CeleryHints, DropHints
from services.core.adapters.folder.secrets import FolderSecretStore
from services.core.adapters.rpc.hints import RpcHints
from services.core.adapters.rpc.server import serve
from services.core.gen.weft.v1 import control_pb2, control_pb2_grpc
from services.core.ports.hints import Hints
from services.core.settings import Settings
from services.core.wiring import SERVICE_SECRET
from tests.testbed.etcd import free_port
from tests.waiting import until

SECRET = b"0" * 32


class Nudged(control_pb2_grpc.ControlServicer):
    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.traces: list[str] = []

    async def Nudge(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.heard.append((request.topic, request.job_id))
        self.traces.append(dict(context.invocation_metadata()).get("traceparent", ""))
        return control_pb2.NudgeReply()


class Service:
    """A real server of weft.v1.Control."""

    def __init__(self, address: str) -> None:
        self.address, self.nudged = address, Nudged()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = await serve(
            self.address, SECRET, lambda server: control_pb2_grpc.add_ControlServicer_to_server(self.nudged, server)
        )

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(None)


class Worker:
    def __init__(self, home: Path) -> None:
        self.log = home / "worker.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.lcm.worker"],
                env={**os.environ, "WEFT_HOME": str(home), "WEFT_LOG_LEVEL": "debug"},
                cwd="/",
                stdout=log,
                stderr=log,
            )

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "run").mkdir()
    addresses = {service: f"127.0.0.1:{free_port()}" for service in ("lcm", "guardian")}
    (home / "run" / "addresses.json").write_text(json.dumps(addresses))
    with ThreadPoolExecutor(1) as thread:
        secrets = FolderSecretStore(home / "secrets")
        thread.submit(asyncio.run, secrets.get_or_create(SERVICE_SECRET, SECRET)).result()
    return home


@pytest.fixture
def settings(home: Path) -> Settings:
    return Settings(home=home)


@pytest.fixture(scope="module")
def worker(home: Path) -> Iterator[Worker]:
    worker = Worker(home)
    yield worker
    worker.end()


@pytest.fixture
async def services(settings: Settings) -> AsyncGenerator[dict[str, Service], None]:
    services = {name: Service(settings.place.address(name)) for name in ("lcm", "guardian")}
    for service in services.values():
        await service.start()
    yield services
    for service in services.values():
        await service.stop()


@pytest.fixture
async def hints(settings: Settings) -> AsyncGenerator[CeleryHints, None]:
    hints = CeleryHints(settings)
    yield hints
    await hints.close()


@pytest.fixture(params=["celery", "rpc"])
async def either(request: pytest.FixtureRequest, settings: Settings, worker: Worker) -> AsyncGenerator[Hints, None]:
    """Through the broker and its worker, or straight to the service."""
    hints = CeleryHints(settings) if request.param == "celery" else RpcHints(settings.place.address, SECRET)
    yield hints
    await hints.close()


async def test_each_hint_reaches_the_service_it_is_for(either: Hints, services: dict[str, Service]) -> None:
    hints = either
    with structlog.contextvars.bound_contextvars(traceparent="00-abc-def-01"):
        for topic in ("submitted", "released", "desired", "admitted"):
            await hints.send(topic, f"job-{topic}")
    lcm, guardian = services["lcm"].nudged, services["guardian"].nudged
    await until(lambda: len(lcm.heard) == 2 and len(guardian.heard) == 2, timeout=20)
    assert set(lcm.heard) == {("submitted", "job-submitted"), ("released", "job-released")}
    assert set(guardian.heard) == {("desired", "job-desired"), ("admitted", "job-admitted")}
    assert {*lcm.traces, *guardian.traces} == {"00-abc-def-01"}
    await until(lambda: hints.sent == 4)
    assert hints.dropped == 0


async def test_a_hint_takes_a_tenth_of_a_second_and_its_sender_does_not_wait(
    either: Hints, services: dict[str, Service]
) -> None:
    hints = either
    heard = services["lcm"].nudged.heard
    await hints.send("submitted", "warm")
    await until(lambda: heard, timeout=20)
    took: list[float] = []
    for number in range(20):
        started = time.monotonic()
        await hints.send("submitted", str(number))
        assert time.monotonic() - started < 0.05
        await until(lambda: len(heard) == number + 2)  # noqa: B023 - called in this round only
        took.append(time.monotonic() - started)
    assert sorted(took)[10] < 0.25, took


async def test_hints_for_a_service_that_is_away_are_forgotten_and_later_ones_arrive(
    hints: CeleryHints, worker: Worker, services: dict[str, Service]
) -> None:
    await services["lcm"].stop()
    for number in range(10):
        await hints.send("submitted", f"lost-{number}")
    await until(lambda: sum(str(line.get("job", "")).startswith("lost-") for line in worker.lines()) == 10, timeout=20)
    assert {line["event"] for line in worker.lines() if str(line.get("job", "")).startswith("lost-")} == {"hint.lost"}
    await hints.send("desired", "still")
    await until(lambda: services["guardian"].nudged.heard == [("desired", "still")])
    await services["lcm"].start()
    await hints.send("submitted", "back")

    async def back() -> bool:
        await hints.send("submitted", "back")
        return ("submitted", "back") in services["lcm"].nudged.heard

    await until(back)


async def test_an_unknown_topic_and_what_is_no_hint_harm_nobody(
    hints: CeleryHints, worker: Worker, services: dict[str, Service], settings: Settings
) -> None:
    await hints.send("weather", "fine")
    folder = settings.place / "broker" / "queue"
    await until(lambda: hints.sent == 1)
    (folder / "0_x.other.msg").write_text("for another queue")
    await hints.send("desired", "next")
    await until(lambda: services["guardian"].nudged.heard == [("desired", "next")], timeout=20)
    await until(lambda: any(line["event"] == "hint.unknown_topic" for line in worker.lines()))
    assert [path.name for path in folder.iterdir()] == ["0_x.other.msg"]
    assert list((settings.place / "broker" / "taken").iterdir()) == []
    (folder / "0_x.other.msg").unlink()


async def test_a_worker_ends_at_once_when_told_and_logs_json_only(
    home: Path, settings: Settings, services: dict[str, Service], tmp_path: Path
) -> None:
    (tmp_path / "run").symlink_to(home / "run")
    secrets = FolderSecretStore(tmp_path / "secrets")
    await secrets.get_or_create(SERVICE_SECRET, SECRET)
    workers = [worker := Worker(tmp_path)]
    hints = CeleryHints(Settings(home=tmp_path))
    try:
        await hints.send("submitted", "first")
        await until(lambda: services["lcm"].nudged.heard, timeout=20)
        told = time.monotonic()
        worker.process.terminate()
        await until(lambda: worker.process.poll() is not None)
        assert time.monotonic() - told < 2
        assert worker.process.returncode == 0
        assert [line["event"] for line in worker.lines()] == ["service.starting", "hint.delivered", "service.stopped"]
        await hints.send("submitted", "while nobody works")
        await until(lambda: hints.sent == 2)
        workers.append(Worker(tmp_path))
        await until(lambda: ("submitted", "while nobody works") in services["lcm"].nudged.heard, timeout=20)
    finally:
        for each in workers:
            each.end()
        await hints.close()


# --- without a worker ----------------------------------------------------------


async def test_without_a_broker_hints_are_dropped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "broker").write_text("not a folder")
    hints = CeleryHints(Settings(home=tmp_path))
    for number in range(3):
        await hints.send("submitted", str(number))
    await until(lambda: hints.dropped == 3)
    assert hints.sent == 0
    await hints.close()
    await hints.send("submitted", "after the end")
    assert hints.dropped == 4


async def test_a_broker_that_hangs_costs_its_sender_nothing(tmp_path: Path) -> None:
    connections: list[asyncio.StreamWriter] = []  # accepted, and never answered
    server = await asyncio.start_server(lambda _, writer: connections.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    hints = CeleryHints(Settings(home=tmp_path, broker_url=f"amqp://guest:guest@127.0.0.1:{port}//"))
    started = time.monotonic()
    for number in range(1500):
        await hints.send("submitted", str(number))
    assert time.monotonic() - started < 1
    assert hints.dropped >= 500, "no more than a thousand wait"
    closing = time.monotonic()
    await hints.close()
    assert time.monotonic() - closing < 5
    server.close()
    for connection in connections:
        connection.transport.abort()


async def test_straight_to_a_service_that_is_away_hints_are_dropped_and_later_ones_arrive(
    settings: Settings, services: dict[str, Service]
) -> None:
    hints = RpcHints(settings.place.address, SECRET)
    await services["lcm"].stop()
    for number in range(10):
        await hints.send("submitted", f"lost-{number}")
    await until(lambda: hints.dropped == 10)
    await hints.send("weather", "fine")
    await until(lambda: hints.dropped == 11)
    await services["lcm"].start()

    async def back() -> bool:
        await hints.send("submitted", "back")
        return ("submitted", "back") in services["lcm"].nudged.heard

    await until(back)
    await hints.close()
    dropped = hints.dropped
    await hints.send("submitted", "after the end")
    assert hints.dropped == dropped + 1


async def test_a_service_that_hangs_costs_the_sender_of_a_straight_hint_nothing(tmp_path: Path) -> None:
    connections: list[asyncio.StreamWriter] = []  # accepted, and never answered
    server = await asyncio.start_server(lambda _, writer: connections.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    hints = RpcHints(lambda _: f"127.0.0.1:{port}", SECRET)
    started = time.monotonic()
    for number in range(1500):
        await hints.send("admitted", str(number))
    assert time.monotonic() - started < 1
    assert hints.dropped == 500, "no more than a thousand wait"
    closing = time.monotonic()
    await hints.close()
    assert time.monotonic() - closing < 5
    assert (hints.sent, hints.dropped) == (0, 1500)
    server.close()
    for connection in connections:
        connection.transport.abort()


async def test_dropping_hints_counts_them() -> None:
    hints = DropHints()
    for _ in range(3):
        await hints.send("submitted", "job")
    assert (hints.sent, hints.dropped) == (0, 3)
    await hints.close()


async def test_many_writers_and_readers_of_one_folder_lose_and_garble_nothing(tmp_path: Path) -> None:
    broker = Broker("filesystem://", tmp_path)
    seen: list[str] = []

    def take(message: Any) -> None:
        seen.append(message.payload[0][1])
        message.ack()

    def read() -> None:
        app = make_app(broker)
        with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection) as consumer:
            consumer.on_message = take
            while len(seen) < 400 and not late.is_set():
                try:
                    connection.drain_events(timeout=0.1)
                except TimeoutError:
                    continue
        app.close()

    def write(writer: int) -> None:
        app = make_app(broker)
        for number in range(100):
            send(app, "submitted", f"{writer}-{number}", "")
        app.close()

    late = threading.Event()
    filesystem.options(tmp_path)
    try:
        await asyncio.wait_for(
            asyncio.gather(
                *(asyncio.to_thread(read) for _ in range(3)), *(asyncio.to_thread(write, nr) for nr in range(4))
            ),
            timeout=30,
        )
    finally:
        late.set()
    assert sorted(seen) == sorted(f"{writer}-{number}" for writer in range(4) for number in range(100))
