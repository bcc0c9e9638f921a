"""The search time of one tenant is bounded, and comes back."""

from __future__ import annotations

import asyncio

import pytest

from services.api.search_budget import SearchBudget
from services.core.domain.errors import ResourceExhausted
from tests.testbed.set_clock import SetClock


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def budget(clock: SetClock) -> SearchBudget:
    return SearchBudget(clock, window_s=30, share=0.5, at_a_time=2)


def search(budget: SearchBudget, clock: SetClock, seconds: float, tenant: str = "acme") -> None:
    with budget.searching(tenant):
        clock.now += seconds


def test_tenant_that_searched_too_long_waits_until_it_has_earned_time_back(
    budget: SearchBudget, clock: SetClock
) -> None:
    search(budget, clock, 29)
    search(budget, clock, 60)
    with pytest.raises(ResourceExhausted, match=r"has searched logs for 44 s \(WEFT_TENANT_SEARCH_S\)") as refused:
        search(budget, clock, 1)
    assert refused.value.retry_after_s == 30
    search(budget, clock, 1, tenant="other")
    clock.now += 30
    search(budget, clock, 1)


def test_searches_of_a_tenant_at_a_time_are_bounded(budget: SearchBudget, clock: SetClock) -> None:
    with budget.searching("acme"), budget.searching("acme"):
        with pytest.raises(ResourceExhausted, match="WEFT_TENANT_SEARCHES"):
            search(budget, clock, 1)
        search(budget, clock, 1, tenant="other")
    search(budget, clock, 1)


def test_failed_search_counts_as_well(budget: SearchBudget, clock: SetClock) -> None:
    def fail() -> None:
        with budget.searching("acme"):
            clock.now += 60
            raise TimeoutError

    with pytest.raises(TimeoutError):
        fail()
    with pytest.raises(ResourceExhausted):
        search(budget, clock, 1)


@pytest.mark.looptime
async def test_streams_of_a_tenant_search_one_at_a_time_and_one_that_leaves_makes_room(
    budget: SearchBudget, clock: SetClock
) -> None:
    entered: list[int] = []

    async def stream(number: int) -> None:
        async with budget.searching_in_turn("acme"):
            entered.append(number)
            await asyncio.sleep(60)

    streams = [asyncio.create_task(stream(number)) for number in range(3)]
    await asyncio.sleep(1)
    assert entered == [0]
    search(budget, clock, 1)  # a page has a place beside them
    for leaving in streams[:2]:
        leaving.cancel()
    await asyncio.sleep(1)
    assert entered == [0, 2]
    clock.now += 100  # the third stream has searched for so long
    streams[2].cancel()
    await asyncio.wait(streams)
    waiting = asyncio.create_task(stream(3))
    await asyncio.sleep(1)
    assert entered == [0, 2]
    clock.now += 60
    await asyncio.sleep(60)
    assert entered == [0, 2, 3]
    waiting.cancel()
    await asyncio.wait({waiting})
