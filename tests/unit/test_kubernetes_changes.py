"""How often a watch names a job whose pods change in a burst."""

from __future__ import annotations

import asyncio

import pytest

from services.core.adapters.kubernetes.changes import Changes

pytestmark = pytest.mark.looptime


async def named(changes: Changes, *, within_s: float) -> list[str]:
    """The jobs that are named within this time."""
    jobs: list[str] = []
    try:
        async with asyncio.timeout(within_s):
            while True:
                jobs.append(await changes.next())
    except TimeoutError:
        return jobs


async def test_first_change_is_named_at_once() -> None:
    changes = Changes()
    changes.add("one")
    changes.add("two")
    assert await named(changes, within_s=0.001) == ["one", "two"]


async def test_burst_of_changes_is_named_with_its_first_and_once_after_it() -> None:
    changes = Changes()
    for _ in range(5):
        changes.add("one")
    assert await named(changes, within_s=0.2) == ["one"]
    assert await named(changes, within_s=10) == ["one"]


async def test_change_after_a_pause_is_named_at_once_again() -> None:
    changes = Changes()
    changes.add("one")
    assert await named(changes, within_s=5) == ["one"]
    changes.add("one")
    assert await named(changes, within_s=0.001) == ["one"]


async def test_job_that_keeps_changing_is_named_some_times_a_second_and_not_less() -> None:
    changes = Changes()

    async def keep_changing() -> None:
        for _ in range(100):
            changes.add("one")
            await asyncio.sleep(0.02)

    changing = asyncio.create_task(keep_changing())
    jobs = await named(changes, within_s=2)
    await changing
    assert 6 <= len(jobs) <= 10


async def test_changes_of_all_jobs_are_named_each_time() -> None:
    changes = Changes()
    changes.add("")
    changes.add("")
    assert await named(changes, within_s=0.001) == ["", ""]
