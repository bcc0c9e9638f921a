"""Hints from a service through a real broker and a real worker process, or directly, to the receiving service."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import structlog

from services.core.adapters.celery.hints import CeleryHints, DropHints
from services.core.adapters.rpc.hints import RpcHints
from services.core.domain.errors import InvalidRequest
from services.core.ports.hints import Hints
from services.core.runtime.address import Address
from services.core.runtime.settings import Settings
from tests.testbed.hints import Carrier, Service, Worker, arrives
from tests.testbed.identities import identity
from tests.testbed.server import free_address, socket_folder
from tests.waiting import HANG_S, tries_within, until

CLOSES_S = 30.0
"""Far beyond what closing takes, and far below what a thousand waiting hints would."""
_MEANT_FOR = {"submitted": "lcm", "released": "lcm", "desired": "guardian", "admitted": "guardian"}


@pytest.fixture
async def hints(carrier: Carrier) -> AsyncGenerator[CeleryHints]:
    hints = CeleryHints(carrier.settings)
    yield hints
    await hints.close()


@pytest.fixture(params=["broker", "straight"])
async def either(request: pytest.FixtureRequest, carrier: Carrier, worker: Worker) -> AsyncGenerator[Hints]:
    """Hints through the broker and its worker, or by direct calls."""
    direct = request.param == "straight"
    hints = (
        RpcHints(carrier.settings.installation.address, identity("api").credential)
        if direct
        else CeleryHints(carrier.settings)
    )
    yield hints
    await hints.close()


async def test_each_hint_reaches_its_service(either: Hints, services: dict[str, Service]) -> None:
    hints = either
    with structlog.contextvars.bound_contextvars(traceparent="00-abc-def-01"):
        for topic, receiver in _MEANT_FOR.items():
            await arrives(hints, services[receiver], topic, f"job-{topic}")
    for name, service in services.items():
        meant = {(topic, f"job-{topic}") for topic, receiver in _MEANT_FOR.items() if receiver == name}
        assert set(service.nudged.heard) == meant
        assert set(service.nudged.traces) == {"00-abc-def-01"}
    await until(lambda: hints.sent + hints.dropped >= len(_MEANT_FOR))


async def test_consecutive_hints_all_arrive(either: Hints, worker: Worker, services: dict[str, Service]) -> None:
    """But those that are counted as lost: on a machine that stalls, a call may take longer than its two seconds."""
    hints = either
    heard = services["lcm"].nudged.heard
    await worker.ready_counter("weft_hints_lost_total")
    await arrives(hints, services["lcm"], "submitted", "warm")
    for number in range(20):
        lost = hints.dropped + worker.counter("weft_hints_lost_total")
        await hints.send("submitted", str(number))
        await until(
            lambda: (
                ("submitted", str(number)) in heard  # noqa: B023 - called in this round only
                or hints.dropped + worker.counter("weft_hints_lost_total") > lost  # noqa: B023 - as above
            )
        )


async def test_hints_for_a_stopped_service_are_lost_and_later_hints_arrive(
    hints: CeleryHints, worker: Worker, services: dict[str, Service]
) -> None:
    lost = await worker.ready_counter("weft_hints_lost_total")
    await services["lcm"].stop()
    for number in range(10):
        await hints.send("submitted", f"lost-{number}")
    await until(lambda: sum(str(line.get("job", "")).startswith("lost-") for line in worker.lines()) == 10)
    assert {line["event"] for line in worker.lines() if str(line.get("job", "")).startswith("lost-")} == {"hint.lost"}
    await until(lambda: worker.counter("weft_hints_lost_total") == lost + 10)
    await arrives(hints, services["guardian"], "desired", "still")
    assert set(services["guardian"].nudged.heard) == {("desired", "still")}
    await services["lcm"].start()
    await hints.send("submitted", "back")

    async def back() -> bool:
        await hints.send("submitted", "back")
        return ("submitted", "back") in services["lcm"].nudged.heard

    await until(back)


async def test_hints_go_by_the_broker_if_the_direct_call_fails(
    carrier: Carrier, worker: Worker, services: dict[str, Service]
) -> None:
    delivered = await worker.ready_counter("weft_hints_delivered_total")
    unused_address = Address(free_address())
    hints = RpcHints(lambda _: unused_address, identity("api").credential, otherwise=CeleryHints(carrier.settings))
    try:
        await arrives(hints, services["guardian"], "desired", "by the broker")
        await until(lambda: worker.counter("weft_hints_delivered_total") > delivered)  # it counts after the answer
        await until(lambda: hints.sent >= 1)
        dropped = hints.dropped
        await hints.send("weather", "fine")  # one that no service wants is not given to the broker
        await until(lambda: hints.dropped == dropped + 1)
    finally:
        await hints.close()
    assert worker.events("hint.topic_refused") == []


async def test_hint_delivered_directly_is_not_sent_to_the_broker(
    carrier: Carrier, services: dict[str, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A call that takes longer, as on a machine that stalls, is made up for by the broker.
    monkeypatch.setattr("services.core.adapters.rpc.hints._TIMEOUT_S", HANG_S)
    monkeypatch.setattr("services.core.adapters.rpc.hints._GOODBYE_S", HANG_S)
    by_broker = CeleryHints(carrier.settings)
    hints = RpcHints(carrier.settings.installation.address, identity("api").credential, otherwise=by_broker)
    await arrives(hints, services["lcm"], "submitted", "direct")
    await hints.close()
    assert hints.sent >= 1
    assert (by_broker.sent, by_broker.dropped) == (0, 0)


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


async def test_hanging_broker_does_not_delay_the_sender(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections are made, and never answered
        for stopwatch in tries_within(1):
            hints = CeleryHints(Settings(home=tmp_path, broker_url=f"amqp://guest:guest@{_address(silent)}//"))
            with stopwatch:
                for number in range(1500):
                    await hints.send("submitted", str(number))
            assert hints.dropped >= 500, "no more than a thousand wait"
            async with asyncio.timeout(CLOSES_S):
                await hints.close()


def _address(listener: socket.socket) -> str:
    return "{}:{}".format(*listener.getsockname())


async def test_direct_hints_to_a_stopped_service_are_dropped_and_later_hints_arrive(
    carrier: Carrier, services: dict[str, Service]
) -> None:
    hints = RpcHints(carrier.settings.installation.address, identity("api").credential)
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


async def test_hanging_service_does_not_delay_the_sender_of_a_direct_hint(tmp_path: Path) -> None:
    path = socket_folder() / "silent"
    with socket.socket(socket.AF_UNIX) as silent:  # connections are made, and never answered
        silent.bind(str(path))
        silent.listen()
        for stopwatch in tries_within(1):
            hints = RpcHints(lambda _: Address(f"unix:{path}"), identity("api").credential)
            with stopwatch:
                for number in range(1500):
                    await hints.send("admitted", str(number))
            assert hints.dropped >= 500, "no more than a thousand wait"
            async with asyncio.timeout(CLOSES_S):
                await hints.close()
            assert (hints.sent, hints.dropped) == (0, 1500)


def test_a_broker_of_another_kind_is_refused_without_repeating_its_password(tmp_path: Path) -> None:
    for url in ("memory://", "sqs://key:hidden@host", "redis:hidden@host", "RabbitMQ", ""):
        with pytest.raises(InvalidRequest, match="WEFT_BROKER_URL begins neither") as refused:
            CeleryHints(Settings(home=tmp_path, broker_url=url))
        assert "hidden" not in str(refused.value)


async def test_dropping_hints_counts_them() -> None:
    hints = DropHints()
    for _ in range(3):
        await hints.send("submitted", "job")
    assert (hints.sent, hints.dropped) == (0, 3)
    await hints.close()
