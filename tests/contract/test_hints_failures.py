"""Hints while brokers and workers die, hang, and are away: what may be lost is lost, nobody waits, and all goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager

import pytest

from services.core.adapters.celery.broker import QUEUE_AT_MOST
from services.core.adapters.celery.hints import CeleryHints
from tests.testbed.hints import Carrier, Server, Service, Worker
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)  # RabbitMQ takes its time to start again on a busy machine
servers_only = pytest.mark.parametrize("carrier", ["rabbitmq", "redis"], indirect=True)


@pytest.fixture
async def hints(carrier: Carrier) -> AsyncGenerator[CeleryHints]:
    hints = CeleryHints(carrier.settings)
    yield hints
    await hints.close()


@contextmanager
def working(carrier: Carrier) -> Generator[Worker]:
    worker = Worker(carrier.home, carrier.url)
    try:
        yield worker
    finally:
        worker.end()


# --- workers -------------------------------------------------------------------


async def test_a_worker_told_to_end_finishes_what_it_has_in_hand_and_logs_json_only(
    carrier: Carrier, services: dict[str, Service]
) -> None:
    heard = services["lcm"].nudged.heard
    worker = Worker(carrier.home, carrier.url)
    hints = CeleryHints(carrier.settings)
    try:
        for number in range(50):
            await hints.send("submitted", str(number))
        await until(lambda: heard, timeout=30)
        worker.process.terminate()
        assert await asyncio.to_thread(worker.process.wait, 20) == 0
        events = [line["event"] for line in worker.lines()]
        assert [event for event in events if event != "hint.delivered"] == [
            "service.starting", "broker.connected", "service.stopped",
        ]  # fmt: skip
        assert events.count("hint.delivered") == len(heard) == len(set(heard)), "nothing was begun and not finished"
        # The others wait for the next one.
        await hints.send("submitted", "while nobody works")
        worker = Worker(carrier.home, carrier.url)
        await until(lambda: ("submitted", "while nobody works") in heard, timeout=30)
        assert sorted(heard) == sorted(("submitted", name) for name in [*map(str, range(50)), "while nobody works"])
    finally:
        worker.end()
        await hints.close()


async def test_hints_that_nobody_takes_do_not_fill_the_broker(carrier: Carrier) -> None:
    hints = CeleryHints(carrier.settings)
    try:
        for number in range(QUEUE_AT_MOST + 500):
            await until(lambda: hints.sent + hints.dropped >= number - 500)  # noqa: B023 - called in this round only
            await hints.send("submitted", str(number))
        await until(lambda: hints.sent == QUEUE_AT_MOST + 500, timeout=60)
    finally:
        await hints.close()
    assert QUEUE_AT_MOST - 1 <= carrier.waiting() <= QUEUE_AT_MOST + 100
    Carrier(carrier.home, carrier.server if carrier.url != "filesystem://" else None)  # empties it


async def test_a_hint_that_a_killed_worker_had_taken_is_given_to_another_one(
    carrier: Carrier, hints: CeleryHints, services: dict[str, Service]
) -> None:
    nudged = services["lcm"].nudged
    nudged.held = asyncio.Event()
    with working(carrier):
        await hints.send("submitted", "taken")
        await until(lambda: nudged.heard, timeout=30)
    nudged.held.set()
    began = time.monotonic()
    with working(carrier) as second:
        await until(lambda: second.events("hint.delivered"), timeout=30)
    assert nudged.heard == [("submitted", "taken")] * 2
    # Redis learns of a death by nothing but time: 10 s, looked at every two. The rest is the second worker's start.
    assert time.monotonic() - began < 25


# --- brokers -------------------------------------------------------------------


@servers_only
async def test_a_broker_that_is_killed_and_started_again_carries_hints_again(
    carrier: Carrier, hints: CeleryHints, services: dict[str, Service]
) -> None:
    heard = services["lcm"].nudged.heard
    with working(carrier) as worker:
        await hints.send("submitted", "before")
        await until(lambda: heard, timeout=30)
        assert worker.not_ready() == ""
        carrier.server.kill()
        try:
            for number in range(5):
                await hints.send("submitted", f"lost-{number}")
            await until(lambda: hints.dropped == 5, timeout=30)
            await until(lambda: "the broker of WEFT_BROKER_URL is away" in worker.not_ready(), timeout=30)
        finally:
            carrier.server.start()
            await carrier.server.ready()

        async def back() -> bool:
            await hints.send("submitted", "back")
            return ("submitted", "back") in heard

        await until(back, timeout=30)
        await until(lambda: worker.not_ready() == "", timeout=30)
        assert worker.process.poll() is None
        # One line when it went, one when it came back, however often it was tried.
        assert [len(worker.events(event)) for event in ("broker.away", "broker.connected")] == [1, 2]


@servers_only
async def test_a_broker_that_hangs_keeps_no_sender_waiting_and_carries_on_later(
    carrier: Carrier, hints: CeleryHints, services: dict[str, Service]
) -> None:
    heard = services["lcm"].nudged.heard
    with working(carrier):
        await hints.send("submitted", "before")
        await until(lambda: heard, timeout=30)
        longest = 0.0
        with hanging(carrier.server):
            for number in range(3000):
                began = time.monotonic()
                await hints.send("submitted", f"hanging-{number}")
                longest = max(longest, time.monotonic() - began)
            # RabbitMQ's machine takes what fits into its buffers; nothing else is kept but what may wait.
            assert hints.sent + hints.dropped >= 2000
        assert longest < 1, "nobody waited for a step of the broker's"

        async def back() -> bool:
            await hints.send("submitted", "back")
            return ("submitted", "back") in heard

        await until(back, timeout=60)


@servers_only
async def test_neither_a_sender_nor_a_worker_stays_for_a_broker_that_hangs(
    carrier: Carrier, services: dict[str, Service]
) -> None:
    hints = CeleryHints(carrier.settings)
    with working(carrier) as worker:
        await hints.send("submitted", "before")
        await until(lambda: services["lcm"].nudged.heard, timeout=30)
        with hanging(carrier.server):
            for number in range(100):
                await hints.send("submitted", str(number))
            worker.process.terminate()
            await asyncio.wait_for(hints.close(), 10)
            assert await asyncio.to_thread(worker.process.wait, 20) == 0


@contextmanager
def hanging(server: Server) -> Generator[None]:
    server.pause()
    try:
        yield
    finally:
        server.go_on()
