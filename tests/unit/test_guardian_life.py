"""The life of a job, from its submission to its release, as Dispatcher and Guardian lead it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.testbed.control_plane import WHOLE_LIFE, ControlPlane

pytestmark = pytest.mark.looptime(noop_cycles=0)


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncGenerator[ControlPlane]:
    one = ControlPlane(tmp_path)
    await one.start_lcm()
    await one.start_pool()
    yield one
    await one.close()


async def test_a_job_goes_through_its_whole_life_each_step_once(plane: ControlPlane) -> None:
    job_id = await plane.submit(learners=2)
    job = await plane.rested(job_id)
    assert await plane.path(job_id) == WHOLE_LIFE
    assert (job.attempt.number, job.attempt.committed, job.counters.retries) == (1, True, 0)
    assert job.summary["lines"] == 1
    assert sorted(plane.helpers.stored) == [(job_id, 1, "worker-0"), (job_id, 1, "worker-1")]
    assert await plane.leftovers() == []
