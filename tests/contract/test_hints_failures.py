"""Hints while brokers and workers are killed, hang or are stopped: hints may be lost, senders never wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager

import pytest

from services.core.adapters.celery.broker import QUEUE_AT_MOST, RABBITMQ
from services.core.adapters.celery.hints import CeleryHints
from services.core.runtime.liveness import wait_until_hung
from services.core.runtime.processes import identify
from tests.testbed.hints import Carrier, Server, Service, Worker, arrives
from tests.testbed.open_files import open_sockets
from tests.waiting import HANG_S, Stopwatch, tries_within, until

servers_only = pytest.mark.parametrize("carrier", ["rabbitmq", "redis"], indirect=True)


@pytest.fixture
async def hints(carrier: Carrier) -> AsyncGenerator[CeleryHints]:
    hints = CeleryHints(carrier.settings)
    yield hints
    await hints.close()


@pytest.fixture
def lasting_hints(carrier: Carrier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints do not expire after half a minute, in which a busy machine may not have started the next worker.

    With RabbitMQ they still do: its queue has the bound, and the worker declares it, too.
    """
    if carrier.kind != RABBITMQ:
        monkeypatch.setattr("services.core.adapters.celery.app.EXPIRES_S", round(10 * HANG_S))


@contextmanager
def working(carrier: Carrier) -> Generator[Worker]:
    worker = Worker(carrier.home, carrier.url)
    try:
        yield worker
    finally:
        worker.end()


# --- workers -------------------------------------------------------------------


@pytest.mark.usefixtures("lasting_hints")
async def test_stopping_worker_finishes_its_hints_and_logs_json_only(
    carrier: Carrier, hints: CeleryHints, services: dict[str, Service]
) -> None:
    heard = services["lcm"].nudged.heard
    names = {("submitted", str(number)) for number in range(50)}
    with working(carrier) as worker:
        await arrives(hints, services["lcm"], "submitted", "first")
        for _, name in sorted(names):
            await hints.send("submitted", name)
        await until(lambda: names & set(heard))
        worker.process.terminate()
        assert await asyncio.to_thread(worker.process.wait, HANG_S) == 0
        events = [line["event"] for line in worker.lines()]
        assert [event for event in events if not event.startswith("hint.")] == [
            "service.starting",
            "broker.connected",
            "service.stopped",
        ]
        # On a machine that stalls, a call may take longer than its two seconds: the hint was heard, and counts as lost.
        delivered, lost = events.count("hint.delivered"), events.count("hint.lost")
        assert delivered + lost == sum(event.startswith("hint.") for event in events)
        assert delivered <= len(heard) <= delivered + lost, "nothing was begun and not finished"
    # The others wait for the next one.
    with working(carrier):
        await arrives(hints, services["lcm"], "submitted", "last")

        def arrived_or_lost() -> set[tuple[str, str]]:
            lost = {("submitted", str(line["job"])) for line in worker.events("hint.lost")}  # of both: one log
            return names & (set(heard) | lost)

        await until(lambda: len(arrived_or_lost()) >= len(names) - hints.dropped)


async def test_hints_without_a_worker_do_not_fill_the_broker(carrier: Carrier, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_CONNECT_S", "_SENDER_S"):  # a hint that a busy broker takes late would be counted as dropped
        monkeypatch.setattr(f"services.core.adapters.celery.app.{name}", HANG_S)
    carrier.empty()  # of what the tests before it have left
    hints = CeleryHints(carrier.settings)
    try:
        for number in range(QUEUE_AT_MOST + 500):
            await until(lambda: hints.sent + hints.dropped >= number - 500)  # noqa: B023 - in this round only
            await hints.send("submitted", str(number))
        await until(lambda: hints.sent + hints.dropped == QUEUE_AT_MOST + 500)
    finally:
        await hints.close()
    # RabbitMQ takes all of them and drops the oldest; where the broker keeps no bound, new ones are dropped.
    taken = QUEUE_AT_MOST + 500 if carrier.kind == RABBITMQ else QUEUE_AT_MOST
    assert (hints.sent, hints.dropped) == (taken, QUEUE_AT_MOST + 500 - taken)
    assert carrier.waiting() == QUEUE_AT_MOST
    carrier.empty()


@pytest.mark.usefixtures("lasting_hints")
@servers_only
async def test_hint_of_a_killed_worker_is_redelivered_to_another_worker(
    carrier: Carrier, hints: CeleryHints, services: dict[str, Service]
) -> None:
    nudged = services["lcm"].nudged
    with working(carrier) as first:
        nudged.on_nudge = lambda job_id: first.process.kill() if job_id == "taken" else None
        await arrives(hints, services["lcm"], "submitted", "taken")
    nudged.on_nudge = None
    before = len(nudged.heard)
    with working(carrier):
        # Redis learns of a death by nothing but time: 10 s, looked at every two.
        await until(lambda: ("submitted", "taken") in nudged.heard[before:])


@servers_only
async def test_idle_worker_does_not_count_as_hung(
    carrier: Carrier, hints: CeleryHints, services: dict[str, Service]
) -> None:
    with working(carrier) as worker:
        await arrives(hints, services["lcm"], "submitted", "before")
        process = identify(worker.process.pid)
        assert process is not None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait_until_hung(process, after_s=2), 3.5)


@pytest.mark.parametrize("carrier", ["folder"], indirect=True)
async def test_worker_whose_address_is_taken_ends_with_the_reason(carrier: Carrier) -> None:
    """Before, it went on without an operations address, and never became ready."""
    with working(carrier) as first:
        await until(lambda: not first.not_ready())
        with working(carrier) as second:
            assert await asyncio.to_thread(second.process.wait, HANG_S) == 1
            (refused,) = second.events("service.start_refused")
            assert "another process serves there" in str(refused["why"])
        assert not first.not_ready()


# --- brokers -------------------------------------------------------------------


@servers_only
async def test_restarted_broker_carries_hints_again(
    carrier: Carrier, hints: CeleryHints, services: dict[str, Service]
) -> None:
    with working(carrier) as worker:
        await arrives(hints, services["lcm"], "submitted", "before")
        await until(lambda: worker.not_ready() == "")
        dropped = hints.dropped
        gone, back = (len(worker.events(f"broker.{name}")) for name in ("disconnected", "connected"))
        carrier.server.kill()
        try:
            for number in range(5):
                await hints.send("submitted", f"lost-{number}")
            await until(lambda: hints.dropped >= dropped + 5)  # "before" may have been sent several times
            await until(lambda: "the broker of WEFT_BROKER_URL is away" in worker.not_ready())
        finally:
            carrier.server.start()
            await carrier.server.ready()
        await arrives(hints, services["lcm"], "submitted", "after")
        await until(lambda: worker.not_ready() == "")
        assert worker.process.poll() is None
        # One line when it went, one when it came back, however often it was tried.
        assert len(worker.events("broker.disconnected")) - gone == len(worker.events("broker.connected")) - back > 0


@servers_only
async def test_hanging_broker_delays_no_sender_and_carries_hints_once_it_resumes(
    carrier: Carrier, hints: CeleryHints, services: dict[str, Service]
) -> None:
    with working(carrier):
        await arrives(hints, services["lcm"], "submitted", "before")
        with hanging(carrier.server):
            for stopwatch in tries_within(0.05):
                waited = sorted([await _takes_s(hints, f"hanging-{number}") for number in range(3000)])
                stopwatch.took_s = waited[-30]  # each but one in a hundred, which the machine may keep
            # RabbitMQ's machine takes what fits into its buffers; nothing else is kept but what may wait.
            assert hints.sent + hints.dropped >= 2000
        await arrives(hints, services["lcm"], "submitted", "after")


@servers_only
async def test_sender_and_worker_exit_while_the_broker_hangs(carrier: Carrier, services: dict[str, Service]) -> None:
    hints = CeleryHints(carrier.settings)
    with working(carrier) as worker:
        await arrives(hints, services["lcm"], "submitted", "before")
        with hanging(carrier.server):
            for number in range(100):
                await hints.send("submitted", str(number))
            worker.process.terminate()
            await asyncio.wait_for(hints.close(), HANG_S)
            assert await asyncio.to_thread(worker.process.wait, HANG_S) == 0


@servers_only
async def test_sender_that_ends_while_the_broker_hangs_leaves_no_connection_open(carrier: Carrier) -> None:
    before = open_sockets()
    hints = CeleryHints(carrier.settings)
    await hints.send("submitted", "before")
    await until(lambda: hints.sent == 1)
    assert open_sockets() - before
    with hanging(carrier.server):
        await hints.send("submitted", "lost")
        await hints.close()
    await until(lambda: not open_sockets() - before)


async def _takes_s(hints: CeleryHints, job_id: str) -> float:
    """How long a hint keeps its sender, in seconds of wall time."""
    with Stopwatch() as stopwatch:
        await hints.send("submitted", job_id)
    return stopwatch.took_s


@contextmanager
def hanging(server: Server) -> Generator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()
