"""A Guardian that dies, or is cut off, at any one call: all or nothing, once, and nothing is left.

Each shape of a job is led through its life once, to count the calls of the guardian process; then once more for each
call and each way it can go wrong. Whoever comes after the crash finds the documents, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.core.domain.errors import NoSpace
from services.core.domain.job import Job
from services.core.domain.status import Desired
from tests.testbed.control_plane import WHOLE_LIFE, ControlPlane
from tests.testbed.tripwire import Tripwire

pytestmark = pytest.mark.looptime(noop_cycles=0)

WAYS = [("crash", "before"), ("crash", "after"), ("cut", "before"), ("cut", "after")]


@dataclass(frozen=True)
class Shape:
    """A job, what is done to it, and how it must end whatever happens to its Guardians."""

    spec: dict[str, object]
    path: list[str]
    attempts: int
    prepare: Callable[[ControlPlane, str], Coroutine[None, None, None]]
    retries: int = 0
    restarts: int = 0
    stored: int = 1
    """How many learners' results are in the object store."""


async def nothing(plane: ControlPlane, job_id: str) -> None: ...


async def fails_once(plane: ControlPlane, job_id: str) -> None:
    plane.helpers.fate(job_id, name="worker-1", attempt=1, code=3, run_s=0.2)
    plane.helpers.fate(job_id, name="worker-0", attempt=1, run_s=None)


async def refused_once(plane: ControlPlane, job_id: str) -> None:
    plane.cluster.refuse("learners", NoSpace("the disk is full"), attempt=1)


async def when_running(plane: ControlPlane, job_id: str, wish: Desired) -> None:
    plane.helpers.fate(job_id, run_s=None)

    await plane.running(job_id)
    await plane.wish(job_id, wish)


async def halted(plane: ControlPlane, job_id: str) -> None:
    await when_running(plane, job_id, Desired.HALT)


async def killed(plane: ControlPlane, job_id: str) -> None:
    await when_running(plane, job_id, Desired.KILL)


START = WHOLE_LIFE[:4]
SHAPES = {
    "one learner": Shape({}, WHOLE_LIFE, 1, nothing),
    "a gang": Shape({"roles": {"ps": {"count": 1}, "worker": {"count": 2}}}, WHOLE_LIFE, 1, nothing, stored=3),
    "retried": Shape(
        {"learners": 2, "retries": {"max": 1, "backoff": "100ms"}}, [*START, "STORING", *WHOLE_LIFE], 2, fails_once,
        retries=1, stored=4,
    ),
    "rolled back": Shape(
        {"retries": {"backoff": "100ms"}}, ["QUEUED", "PENDING", *WHOLE_LIFE], 2, refused_once, restarts=1,
    ),
    "halted": Shape({"learners": 2}, [*START, "HALTING", "HALTED"], 1, halted, stored=2),
    "killed": Shape({"learners": 2}, [*START, "KILLED"], 1, killed, stored=0),
}  # fmt: skip


async def lead(shape: Shape, home: Path, wire: Tripwire) -> list[str]:
    """One life, with the tripwire in the first guardian process; a second one comes where that one died.

    The calls that the first one made of its ports, until the job was at rest.
    """
    plane = ControlPlane(home)
    await plane.start_lcm()
    first = await plane.start_pool(wire)
    job_id = await plane.submit(**shape.spec)

    async def succeed() -> None:
        await wire.dead.wait()
        await plane.kill(first)
        await plane.start_pool()

    happening = [asyncio.create_task(shape.prepare(plane, job_id)), asyncio.create_task(succeed())]
    job = await plane.rested(job_id, within_s=120)
    calls = list(wire.calls)
    assert happening[0].done()
    happening[1].cancel()
    await asyncio.gather(*happening, return_exceptions=True)
    check(shape, job, await plane.path(job_id))
    assert len(plane.helpers.stored) == shape.stored
    assert await plane.leftovers() == []
    # What comes too late leaves nothing either, and brings nothing back.
    await asyncio.sleep(6)
    assert await plane.job(job_id) == job or (await plane.job(job_id)).history_tail == ()
    assert await plane.leftovers() == []
    await plane.close()
    return calls


def check(shape: Shape, job: Job, path: list[str]) -> None:
    assert path == shape.path
    assert job.attempt.number == shape.attempts
    assert (job.counters.retries, job.counters.restarts) == (shape.retries, shape.restarts)
    assert job.released is not None
    assert job.observed_generation == (job.generation if job.generation > 1 else job.observed_generation)


@pytest.mark.parametrize(("what", "when"), WAYS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
async def test_whatever_call_goes_wrong_the_job_ends_as_it_should(
    name: str, what: str, when: str, tmp_path: Path
) -> None:
    shape = SHAPES[name]
    calls = await lead(shape, tmp_path / "undisturbed", Tripwire())
    assert len(calls) > 30
    for number, call in enumerate(calls):
        wire = Tripwire(at=number, when=when, what=what)
        try:
            with capture_logs():
                await lead(shape, tmp_path / str(number), wire)
        except AssertionError as error:
            raise AssertionError(f"{what} {when} call {number} ({call}): {error}") from error
