"""Which request goes to the API server next, where more wait than are sent at once."""

from __future__ import annotations

import asyncio

from services.core.adapters.kubernetes.slots import Slots, starting


class Sent:
    """Requests in the order in which they got their slot. Each holds it until ``end``."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.order: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, turn: int = 0) -> None:
        """Returns once the request is sent, or waits. ``turn``: of the start that it is of; 0: it is of none."""
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._send(name, turn))
        await settle()

    async def _send(self, name: str, turn: int) -> None:
        if not turn:
            return await self._hold(name)
        with starting(turn):
            await self._hold(name)
        return None

    async def _hold(self, name: str) -> None:
        async with self._slots:
            self.order.append(name)
            await self._ends[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_earlier_starts_go_first_and_everything_else_before_any_start() -> None:
    sent = Sent(Slots(1))
    await sent.begin("first")
    await sent.begin("start 3", 3)
    await sent.begin("start 1", 1)
    await sent.begin("stop")
    await sent.begin("start 1, again", 1)
    await sent.begin("look")
    expected = ["first", "stop", "look", "start 1", "start 1, again", "start 3"]
    await sent.end(*expected)
    assert sent.order == expected


async def test_no_more_requests_are_sent_at_once_than_there_are_slots() -> None:
    sent = Sent(Slots(2))
    for name in "abcd":
        await sent.begin(name)
    assert sent.order == ["a", "b"]
    await sent.end("b")
    assert sent.order == ["a", "b", "c"]
    await sent.end("a", "c", "d")
    assert sent.order == ["a", "b", "c", "d"]


async def test_request_that_is_cancelled_while_it_waits_takes_no_slot() -> None:
    sent = Sent(Slots(1))
    for name in "abc":
        await sent.begin(name)
    sent.tasks["b"].cancel()
    await sent.end("a", "c")
    await sent.begin("d")
    assert sent.order == ["a", "c", "d"]
    await sent.end("d")


async def test_request_that_is_cancelled_as_it_gets_its_slot_passes_it_on() -> None:
    slots = Slots(1)
    sent = Sent(slots)
    for name in "abc":
        await sent.begin(name)
    # In one turn of the loop: a ends, which grants b its slot, and b is cancelled before it runs.
    sent.tasks["a"].cancel()
    await asyncio.sleep(0)
    sent.tasks["b"].cancel()
    await settle()
    assert sent.order == ["a", "c"]
    await sent.end("c")
    async with slots:
        pass


async def test_tasks_of_a_start_are_a_part_of_it() -> None:
    sent = Sent(Slots(1))
    await sent.begin("first")
    with starting(1):
        await sent.begin("start 1")  # creates a task
    await sent.begin("stop")
    await sent.end("first", "stop", "start 1")
    assert sent.order == ["first", "stop", "start 1"]
