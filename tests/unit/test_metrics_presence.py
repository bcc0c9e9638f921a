"""When learners were heard of, how far they are, and who follows."""

from __future__ import annotations

import asyncio
import contextlib
import math

import pytest

from services.core.domain.errors import Unavailable
from services.core.domain.tokens import LearnerIdentity
from services.metrics.following import Bells, Follower, Page
from services.metrics.presence import Presence
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

    async def turn(self, ms: int) -> None:
        """So long passes; then whoever sleeps goes on, until it sleeps again."""
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
def presence(clock: HandClock) -> Presence:
    return Presence(clock, remember_s=60)


def test_a_former_attempt_s_learner_says_nothing_about_the_new_one(presence: Presence) -> None:
    presence.seen(learner(attempt=2))
    presence.seen(learner(attempt=1))
    presence.tell_progress(learner(attempt=1), 0.9, 1)
    assert presence.progress("j0") == (-1, -1)


@pytest.mark.parametrize("told", [math.nan, -0.5, 1.5, math.inf])
def test_progress_that_is_none_is_unknown(presence: Presence, told: float) -> None:
    presence.seen(learner())
    presence.tell_progress(learner(), told, -7)
    assert presence.progress("j0") == (-1, -1)


def test_a_job_is_as_far_as_the_slowest_of_its_newest_attempt_that_tells(presence: Presence) -> None:
    for one, progress in ((learner(0, 1), 0.1), (learner(1, 2), 0.75), (learner(2, 2), 0.5), (learner(3, 2), -1.0)):
        presence.seen(one)
        presence.tell_progress(one, progress, round(progress * 100))
    assert presence.progress("j0") == (0.5, 75)


async def test_learners_not_heard_of_for_long_are_forgotten(presence: Presence, clock: HandClock) -> None:
    forgetting = asyncio.create_task(presence.forget_old())
    presence.seen(learner(job="old"))
    presence.tell_progress(learner(job="old"), 0.5, 7)
    presence.seen(learner(job="spoke"))
    clock.ms += 50_000
    presence.seen(learner(job="spoke"))
    await clock.turn(11_000)
    assert presence.progress("old") == (-1, -1)
    assert len(presence) == 1
    presence.forget("spoke")
    assert len(presence) == 0
    forgetting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await forgetting


class Numbers:
    """A source that grows: what is stored is 1, 2, ... ``count``; matching are the even ones."""

    def __init__(self) -> None:
        self.count, self.reads = 0, 0

    async def read(self, after: int) -> Page[int]:
        self.reads += 1
        found = [number for number in range(after + 1, self.count + 1) if number % 2 == 0][:3]
        full = len(found) == 3
        return Page(found, found[-1] if full else max(after, self.count), full)


def follower(*, keep_alive_s: float = 60.0) -> Follower[int]:
    return Follower(Bells(), asyncio.Event(), keep_alive_s, 0.0)


async def test_a_follower_is_woken_and_asks_only_then() -> None:
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
    follows.bells.ring("another job")
    numbers.count = 9
    follows.bells.ring("j0")  # nothing that matches
    await until(lambda: numbers.reads == reads + 1)
    numbers.count = 10
    follows.bells.ring("j0")
    assert (await waiting).entries == [10]
    await pages.aclose()


async def test_a_quiet_follower_hears_signs_of_life_that_say_where_it_is() -> None:
    numbers, follows = Numbers(), follower(keep_alive_s=0.01)
    pages = follows.follow("j0", 0, numbers.read)
    assert await anext(pages) == Page([], 0, full=False)
    numbers.count = 1
    assert await anext(pages) == Page([], 1, full=False)
    await pages.aclose()


async def test_a_follower_is_sent_away_when_the_service_stops() -> None:
    follows = follower()
    pages = follows.follow("j0", 0, Numbers().read)
    await anext(pages)
    waiting = asyncio.ensure_future(anext(pages))
    follows.stopping.set()
    with pytest.raises(Unavailable, match="again"):
        await waiting
