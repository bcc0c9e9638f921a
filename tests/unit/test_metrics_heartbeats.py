"""Last calls of learners, their progress, and followers of jobs."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import pytest

from services.core.domain.errors import Unavailable
from services.core.domain.tokens import LearnerIdentity
from services.metrics.following import Follower, Notifier, Page
from services.metrics.heartbeats import Fetching, Heartbeats
from tests.waiting import until


class HandClock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.ms = 1_000_000
        self.sleepers: list[asyncio.Future[None]] = []

    def now_ms(self) -> int:
        return self.ms

    def boottime(self) -> float:
        return self.ms / 1000

    def random_bits(self, count: int) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        sleeper = asyncio.get_running_loop().create_future()
        self.sleepers.append(sleeper)
        await sleeper

    async def advance(self, ms: int) -> None:
        """Advances by ``ms``, wakes the sleeper and waits until it sleeps again."""
        await until(lambda: self.sleepers)
        self.ms += ms
        self.sleepers.pop().set_result(None)
        await until(lambda: self.sleepers)


def learner(rank: int = 0, attempt: int = 1, job: str = "j0") -> LearnerIdentity:
    return LearnerIdentity(job, "t", attempt, "worker", rank, f"worker-{rank}")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def heartbeats(clock: HandClock) -> Heartbeats:
    return Heartbeats(clock, remember_s=60)


def test_a_call_of_a_former_attempt_does_not_count_for_the_new_one(heartbeats: Heartbeats) -> None:
    heartbeats.mark_seen(learner(attempt=2))
    heartbeats.mark_seen(learner(attempt=1))
    heartbeats.set_progress(learner(attempt=1), 0.9, 1)
    assert heartbeats.progress("j0") == (-1, -1)


@pytest.mark.parametrize("progress", [math.nan, -0.5, 1.5, math.inf])
def test_progress_outside_0_to_1_is_unknown(heartbeats: Heartbeats, progress: float) -> None:
    heartbeats.mark_seen(learner())
    heartbeats.set_progress(learner(), progress, -7)
    assert heartbeats.progress("j0") == (-1, -1)


def test_progress_of_a_job_is_that_of_the_slowest_reporting_learner_of_its_newest_attempt(
    heartbeats: Heartbeats,
) -> None:
    for identity, progress in (
        (learner(0, 1), 0.1),
        (learner(1, 2), 0.75),
        (learner(2, 2), 0.5),
        (learner(3, 2), -1.0),
    ):
        heartbeats.mark_seen(identity)
        heartbeats.set_progress(identity, progress, round(progress * 100))
    assert heartbeats.progress("j0") == (0.5, 75)


FETCHING = Fetching("environment", 1_000, "building the environment: jax", 5, 10)


def test_what_is_fetched_is_that_of_the_newest_attempt_by_learner(heartbeats: Heartbeats) -> None:
    for identity, fetching in (
        (learner(0, 1), FETCHING),
        (learner(2, 2), FETCHING),
        (learner(1, 2), FETCHING._replace(done_bytes=None)),
        (learner(3, 2), None),
    ):
        heartbeats.mark_seen(identity)
        heartbeats.set_fetching(identity, fetching)
    heartbeats.set_fetching(learner(2, 1), None)
    assert heartbeats.fetching("j0") == [
        ("worker-1", 2, FETCHING._replace(done_bytes=None)),
        ("worker-2", 2, FETCHING),
    ]
    assert heartbeats.fetching("j1") == []


@pytest.mark.parametrize("forged", [{"step": "queue"}, {"began_ms": -1}, {"began_ms": 2**62}, {"total_bytes": 2**63}])
def test_a_forged_step_is_not_shown(heartbeats: Heartbeats, forged: dict[str, Any]) -> None:
    heartbeats.mark_seen(learner())
    heartbeats.set_fetching(learner(), FETCHING._replace(**forged))
    assert heartbeats.fetching("j0") == []


def test_the_text_of_a_step_is_bounded_and_storable(heartbeats: Heartbeats) -> None:
    heartbeats.mark_seen(learner())
    heartbeats.set_fetching(learner(), FETCHING._replace(message="\0" + "x" * 9_000))
    ((_, _, shown),) = heartbeats.fetching("j0")
    assert (len(shown.message), shown.message[:5]) == (500, "\\x00x")


def test_progress_bars_are_those_of_the_newest_attempt_bounded_and_storable(heartbeats: Heartbeats) -> None:
    for identity, bar in (
        (learner(0, 1), "old"),
        (learner(0, 2), " 20%"),
        (learner(1, 2), ""),
        (learner(2, 2), "\0" * 999),
    ):
        heartbeats.mark_seen(identity)
        heartbeats.set_bar(identity, bar)
    heartbeats.set_bar(learner(0, 1), "of an earlier attempt")
    (first, second) = heartbeats.bars("j0")
    assert first == ("worker-0", 2, " 20%")
    assert (second[0], len(second[2]), second[2][:4]) == ("worker-2", 300, "\\x00")
    assert heartbeats.bars("other") == []


async def test_jobs_silent_for_long_are_dropped(heartbeats: Heartbeats, clock: HandClock) -> None:
    forgetting = asyncio.create_task(heartbeats.forget_old())
    heartbeats.mark_seen(learner(job="old"))
    heartbeats.set_progress(learner(job="old"), 0.5, 7)
    heartbeats.mark_seen(learner(job="active"))
    clock.ms += 50_000
    heartbeats.mark_seen(learner(job="active"))
    await clock.advance(11_000)
    assert heartbeats.progress("old") == (-1, -1)
    assert len(heartbeats) == 1
    heartbeats.forget("active")
    assert len(heartbeats) == 0
    forgetting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await forgetting


class Numbers:
    """A growing store of the numbers 1, 2, ... ``count``; the even ones match."""

    def __init__(self) -> None:
        self.count, self.reads = 0, 0

    async def read(self, after: int) -> Page[int]:
        self.reads += 1
        matching = [number for number in range(after + 1, self.count + 1) if number % 2 == 0][:3]
        full = len(matching) == 3
        return Page(matching, matching[-1] if full else max(after, self.count), full)


def follower(*, keep_alive_s: float = 60.0) -> Follower[int]:
    return Follower(Notifier(), asyncio.Event(), keep_alive_s, 0.0)


async def test_a_follower_reads_the_store_only_when_notified() -> None:
    numbers, follows = Numbers(), follower()
    numbers.count = 8
    pages = follows.follow("j0", 0, numbers.read)
    assert (await anext(pages)).entries == [2, 4, 6]
    assert (await anext(pages)).entries == [8]
    waiting = asyncio.ensure_future(anext(pages))
    reads = numbers.reads
    for _ in range(100):
        await asyncio.sleep(0)
    assert numbers.reads == reads
    follows.notifier.notify("another job")
    numbers.count = 9
    follows.notifier.notify("j0")  # 9 does not match
    await until(lambda: numbers.reads == reads + 1)
    numbers.count = 10
    follows.notifier.notify("j0")
    assert (await waiting).entries == [10]
    await pages.aclose()


async def test_an_idle_follower_gets_empty_pages_with_its_position() -> None:
    numbers, follows = Numbers(), follower(keep_alive_s=0.01)
    pages = follows.follow("j0", 0, numbers.read)
    assert await anext(pages) == Page([], 0, full=False)
    numbers.count = 1
    assert await anext(pages) == Page([], 1, full=False)
    await pages.aclose()


async def test_a_follower_ends_when_the_service_stops() -> None:
    follows = follower()
    pages = follows.follow("j0", 0, Numbers().read)
    await anext(pages)
    waiting = asyncio.ensure_future(anext(pages))
    follows.stopping.set()
    with pytest.raises(Unavailable, match="again"):
        await waiting
