"""Lives of a job in which one process goes wrong at one call: whatever it is, the job ends as it should.

A *story* leads a job of some shape through its life, and says which calls of the process under test belong to which
*procedure* (provisioning, activation, halt, kill, end, take-over ...). It is told once undisturbed, to learn of the
calls; then once more for each call and each way in which that can go wrong. Whoever comes after the fault finds the
documents, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import looptime
from structlog.testing import capture_logs

from services.core.domain.errors import IllegalTransition
from services.core.domain.job import Job
from services.core.domain.status import Desired
from tests.testbed.control_plane import ControlPlane, Process
from tests.testbed.tripwire import Tripwire

WAYS = (
    ("crash", "before"), ("crash", "after"), ("crash", "answered"), ("cut", "before"), ("cut", "after"),
    ("pause", "before"), ("pause", "after"),
)  # fmt: skip
"""What goes wrong with a process, and when: before the call, after its effect and before its answer, after its answer.
(After a cut or a pause the answer comes as well, or never did: there is no third way.)
"""
WISHES = (("halt", "before"), ("kill", "before"))
"""What its owner may want at that very moment."""
PAUSE_S = 5.0
"""Longer than a lease: who wakes up then has been given up by the others."""
GONE_S = 30.0
"""Nothing is left so long after the end, or after the fault where that came later (R5)."""
_REST_S = 120.0
_LATE_S = 6.0
"""So long something may still come that was on its way."""


@dataclass(frozen=True)
class Shape:
    name: str
    learners: tuple[str, ...]
    spec: Mapping[str, object]
    download_s: float = 0.3


@dataclass(frozen=True)
class Fault:
    """At the call of this number, counted from 0."""

    at: int
    what: str
    when: str
    point: str
    """What that call is about, undisturbed."""

    def __str__(self) -> str:
        return f"{self.what} {self.when} call {self.at}, {self.point}"


@dataclass
class Life:
    """One telling of a story; what a story is told with."""

    plane: ControlPlane
    wire: Tripwire
    shape: Shape
    jobs: list[str] = field(default_factory=list)
    tested: asyncio.Future[Process] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """The process under test."""
    marks: dict[str, int] = field(default_factory=dict)
    """How many calls it had made when something happened that is no call of its own."""

    @property
    def job_id(self) -> str:
        """Of the first job."""
        return self.jobs[0]

    def mark(self, name: str) -> None:
        self.marks[name] = len(self.wire.calls)

    def call(self, *words: str) -> int:
        """The number of its first call that is about all these words."""
        return next(number for number, point in enumerate(self.wire.points) if all(word in point for word in words))

    async def submit(self, **spec: object) -> None:
        self.jobs.append(await self.plane.submit(**{**self.shape.spec, **spec}))
        self.plane.helpers.fate(self.jobs[-1], download_s=self.shape.download_s)

    async def run_for_ever(self) -> None:
        """All learners run, until somebody ends them."""
        self.plane.helpers.fate(self.job_id, download_s=self.shape.download_s, run_s=None)
        await self.plane.running(self.job_id)


Sections = Mapping[str, tuple[int, int]]
"""Procedure -> (first call, the first one beyond)."""


@dataclass(frozen=True)
class Story:
    """``lead`` does what is done to the job and starts every process, the one under test as ``life.tested``."""

    name: str
    lead: Callable[[Life], Awaitable[None]]
    sections: Callable[[Life], Sections]
    path: Sequence[str]
    service: str = "pool"
    """pool | lcm: what the process under test is."""
    attempts: int = 1
    retries: int = 0
    restarts: int = 0
    stored: int = 1
    """How many attempts' results are in the object store."""


def tell(story: Story, shape: Shape, home: Path, fault: Fault | None = None) -> Life:
    """AssertionError where the job does not end as it should, or anything is left.

    Each in a loop of its own, whose time begins at 0: so up to the fault two tellings are the same, call by call.
    """
    loop = partial(looptime.new_event_loop, noop_cycles=0, _enabled=True)
    with capture_logs(), asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(_tell(story, shape, home, fault))


async def _tell(story: Story, shape: Shape, home: Path, fault: Fault | None) -> Life:
    plane = ControlPlane(home)
    wire = Tripwire() if fault is None else Tripwire(at=fault.at, what=fault.what, when=fault.when)
    life = Life(plane, wire, shape)
    with_applied_key = fault is not None and fault.what in {"halt", "kill"}
    if fault is not None and with_applied_key:
        wire.act = lambda: _wish(life, Desired(fault.what))
    recovering = asyncio.create_task(_recover(story, life, fault))
    leading = asyncio.ensure_future(story.lead(life))
    try:
        over, _ = await asyncio.wait([leading], timeout=_REST_S)
        assert over, "the story came to no end"
        await leading
        jobs = [await plane.rested(job_id, within_s=_REST_S) for job_id in life.jobs]
        life.mark("rest")
        for job in jobs:
            path = await plane.path(job.id)
            if with_applied_key:
                _judge_wished(job, path)
            else:
                _judge(story, life, job, path)
        await _nothing_left(plane, within_s=GONE_S if fault is not None else 0)
        await asyncio.sleep(_LATE_S)
        if fault is not None:
            assert wire.tripped.is_set(), "the call was never made: a point that is not there shows nothing"
            assert wire.points[fault.at] == fault.point
            if not with_applied_key:
                await asyncio.wait_for(recovering, PAUSE_S + 1)
                await asyncio.sleep(_LATE_S)
        for job in jobs:
            assert _lasting(await plane.job(job.id)) == _lasting(job), "something came late"
        await _nothing_left(plane, within_s=GONE_S if fault is not None else 0)
    finally:
        leading.cancel()
        recovering.cancel()
        await asyncio.gather(leading, recovering, return_exceptions=True)
        await plane.close()
    return life


async def _wish(life: Life, wish: Desired) -> None:
    with suppress(IllegalTransition):  # it was over before
        for job_id in life.jobs:
            await life.plane.set_desired(job_id, wish)


async def _recover(story: Story, life: Life, fault: Fault | None) -> None:
    """Another process comes: in its place where it died, beside it where it stands still."""
    tested = await life.tested
    start = life.plane.start_lcm if story.service == "lcm" else life.plane.start_pool
    await life.wire.tripped.wait()
    assert fault is not None
    if fault.what == "crash":
        await life.plane.kill(tested)
        await start(place="tested")
    elif fault.what == "pause":
        life.plane.pause(tested)
        await start(place="another")
        await asyncio.sleep(PAUSE_S)
        life.wire.resume()


def _judge(story: Story, life: Life, job: Job, path: list[str]) -> None:
    assert path == list(story.path)
    assert job.attempt.number == story.attempts
    assert (job.counters.retries, job.counters.restarts) == (story.retries, story.restarts)
    stored = [name for job_id, _, name in life.plane.helpers.stored if job_id == job.id]
    assert sorted(stored) == sorted(life.shape.learners * story.stored)
    for attempt in range(1, job.attempt.number + 1):
        started = {name for job_id, number, name in life.plane.starts if (job_id, number) == (job.id, attempt)}
        assert started in (set(), set(life.shape.learners)), f"of attempt {attempt} only {started} ran"
    _judge_wish(job)


def _judge_wished(job: Job, path: list[str]) -> None:
    """Its owner's wish came at some moment: it is granted, or the job was over before."""
    granted = {Desired.HALT: "HALTED", Desired.KILL: "KILLED", Desired.RUN: "COMPLETED"}[job.desired]
    assert path[-1] in {granted, "COMPLETED"}
    assert job.attempt.number <= 1
    assert path.count(path[-1]) == 1
    _judge_wish(job)


def _judge_wish(job: Job) -> None:
    assert job.released is not None or job.attempt.number == 0
    assert job.generation in {1, job.observed_generation}


async def _nothing_left(plane: ControlPlane, *, within_s: float) -> None:
    deadline = plane.clock.boottime() + within_s
    while left := await plane.leftovers():
        assert plane.clock.boottime() < deadline, f"left behind: {left}"
        await asyncio.sleep(0.5)


def _lasting(job: Job) -> tuple[object, ...]:
    """What a job at rest keeps for ever."""
    return job.state, job.attempt, job.verdict, job.released, job.counters, job.finished
