"""Crash points: runs of a job in which one process fails at one call of its ports, and the job must end as without.

A *scenario* takes a job of some kind through its states, and says which calls of the process under test belong to
which *procedure* (provisioning, activation, halt, kill, end, take-over ...). It runs once without a fault, to record
the calls, and then once for each call and each kind of fault. The process that takes over finds only the documents.
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

FAULTS = (
    ("crash", "before"),
    ("crash", "after"),
    ("crash", "answered"),
    ("cut", "before"),
    ("cut", "after"),
    ("pause", "before"),
    ("pause", "after"),
)
"""(fault, when) of a call: before it, after its effect and before its answer, or after its answer.

A cut or pause after the answer would be one before the next call.
"""
REQUESTS = (("halt", "before"), ("kill", "before"))
"""(request of the owner, when) of a call."""
PAUSE_S = 5.0
"""Longer than a lease, so that another process has taken over when the paused one continues."""
GONE_S = 30.0
"""Nothing is left so long after the end, or after the fault where that came later (R5)."""
_REST_S = 120.0
_LATE_S = 6.0
"""Late effects come within so long."""


@dataclass(frozen=True)
class JobKind:
    """A kind of job."""

    name: str
    learners: tuple[str, ...]
    spec: Mapping[str, object]
    download_s: float = 0.3


@dataclass(frozen=True)
class Fault:
    """A fault, or a request of the owner, at one call."""

    at: int
    """Number of the call, from 0."""
    kind: str
    """crash | cut | pause | halt | kill."""
    when: str
    """before | after | answered."""
    point: str
    """The call as it is without a fault, e.g. ``cluster.do(reserve)``."""

    def __str__(self) -> str:
        return f"{self.kind} {self.when} call {self.at}, {self.point}"


@dataclass
class ScenarioRun:
    """One run of a scenario."""

    plane: ControlPlane
    tripwire: Tripwire
    """Counts the calls of the process under test, and makes one fail."""
    job_kind: JobKind
    jobs: list[str] = field(default_factory=list)
    tested: asyncio.Future[Process] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """The process under test."""
    marks: dict[str, int] = field(default_factory=dict)
    """Event -> how many calls the process under test had made by then."""

    @property
    def job_id(self) -> str:
        """The id of the first job."""
        return self.jobs[0]

    def mark(self, name: str) -> None:
        self.marks[name] = len(self.tripwire.calls)

    def call(self, *words: str) -> int:
        """Returns the number of the first call whose point has all these words."""
        points = enumerate(self.tripwire.points)
        return next(number for number, point in points if all(word in point for word in words))

    async def submit(self, **spec: object) -> None:
        self.jobs.append(await self.plane.submit(**{**self.job_kind.spec, **spec}))
        self.plane.helpers.fate(self.jobs[-1], download_s=self.job_kind.download_s)

    async def run_without_end(self) -> None:
        """Lets all learners run until they are stopped. Returns when they run."""
        self.plane.helpers.fate(self.job_id, download_s=self.job_kind.download_s, run_s=None)
        await self.plane.running(self.job_id)


Sections = Mapping[str, tuple[int, int]]
"""Procedure -> (number of its first call, number after its last one)."""


@dataclass(frozen=True)
class Scenario:
    """What happens to a job, and how it ends."""

    name: str
    lead: Callable[[ScenarioRun], Awaitable[None]]
    """Starts the processes, the one under test as ``run.tested``, and submits the jobs."""
    sections: Callable[[ScenarioRun], Sections]
    path: Sequence[str]
    """The statuses of the job, in order."""
    service: str = "pool"
    """pool | lcm: the service of the process under test."""
    attempts: int = 1
    retries: int = 0
    restarts: int = 0
    stored: int = 1
    """How many attempts' results are in the object store."""


def run_scenario(scenario: Scenario, job_kind: JobKind, home: Path, fault: Fault | None = None) -> ScenarioRun:
    """Runs a scenario. Raises AssertionError where the job does not end as it should, or anything is left.

    Each run has an event loop of its own, whose time begins at 0, so two runs make the same calls up to the fault.
    """
    loop = partial(looptime.new_event_loop, noop_cycles=0, _enabled=True)
    with capture_logs(), asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(_run_scenario(scenario, job_kind, home, fault))


async def _run_scenario(scenario: Scenario, job_kind: JobKind, home: Path, fault: Fault | None) -> ScenarioRun:
    plane = ControlPlane(home)
    tripwire = Tripwire() if fault is None else Tripwire(at=fault.at, what=fault.kind, when=fault.when)
    run = ScenarioRun(plane, tripwire, job_kind)
    is_request = fault is not None and fault.kind in {"halt", "kill"}
    if fault is not None and is_request:
        tripwire.act = lambda: _set_desired(run, Desired(fault.kind))
    recovering = asyncio.create_task(_recover(scenario, run, fault))
    leading = asyncio.ensure_future(scenario.lead(run))
    try:
        done, _ = await asyncio.wait([leading], timeout=_REST_S)
        assert done, "the scenario did not end"
        await leading
        jobs = [await plane.rested(job_id, within_s=_REST_S) for job_id in run.jobs]
        run.mark("rest")
        for job in jobs:
            path = await plane.path(job.id)
            if is_request:
                _check_request_applied(job, path)
            else:
                _check_end(scenario, run, job, path)
        await _wait_until_nothing_left(plane, within_s=GONE_S if fault is not None else 0)
        await asyncio.sleep(_LATE_S)
        if fault is not None:
            assert tripwire.tripped.is_set(), "the call was not made, so nothing was tested"
            assert tripwire.points[fault.at] == fault.point
            if not is_request:
                await asyncio.wait_for(recovering, PAUSE_S + 1)
                await asyncio.sleep(_LATE_S)
        for job in jobs:
            assert _final_fields(await plane.job(job.id)) == _final_fields(job), "a late effect changed the job"
        await _wait_until_nothing_left(plane, within_s=GONE_S if fault is not None else 0)
    finally:
        leading.cancel()
        recovering.cancel()
        await asyncio.gather(leading, recovering, return_exceptions=True)
        await plane.close()
    return run


async def _set_desired(run: ScenarioRun, desired: Desired) -> None:
    with suppress(IllegalTransition):  # the job had ended
        for job_id in run.jobs:
            await run.plane.set_desired(job_id, desired)


async def _recover(scenario: Scenario, run: ScenarioRun, fault: Fault | None) -> None:
    """Starts another process: the restart of a crashed one, or a second one while the first is paused."""
    tested = await run.tested
    start = run.plane.start_lcm if scenario.service == "lcm" else run.plane.start_pool
    await run.tripwire.tripped.wait()
    assert fault is not None
    if fault.kind == "crash":
        await run.plane.kill(tested)
        await start(place="tested")
    elif fault.kind == "pause":
        run.plane.pause(tested)
        await start(place="another")
        await asyncio.sleep(PAUSE_S)
        run.tripwire.resume()


def _check_end(scenario: Scenario, run: ScenarioRun, job: Job, path: list[str]) -> None:
    assert path == list(scenario.path)
    assert job.attempt.number == scenario.attempts
    assert (job.counters.retries, job.counters.restarts) == (scenario.retries, scenario.restarts)
    stored = [name for job_id, _, name in run.plane.helpers.stored if job_id == job.id]
    assert sorted(stored) == sorted(run.job_kind.learners * scenario.stored)
    for attempt in range(1, job.attempt.number + 1):
        started = {name for job_id, number, name in run.plane.starts if (job_id, number) == (job.id, attempt)}
        assert started in (set(), set(run.job_kind.learners)), f"of attempt {attempt} only {started} ran"
    _check_settled(job)


def _check_request_applied(job: Job, path: list[str]) -> None:
    """The owner's request was applied, or the job had completed before it."""
    requested = {Desired.HALT: "HALTED", Desired.KILL: "KILLED", Desired.RUN: "COMPLETED"}[job.desired]
    assert path[-1] in {requested, "COMPLETED"}
    assert job.attempt.number <= 1
    assert path.count(path[-1]) == 1
    _check_settled(job)


def _check_settled(job: Job) -> None:
    assert job.released is not None or job.attempt.number == 0
    assert job.generation in {1, job.observed_generation}


async def _wait_until_nothing_left(plane: ControlPlane, *, within_s: float) -> None:
    deadline = plane.clock.boottime() + within_s
    while left := await plane.leftovers():
        assert plane.clock.boottime() < deadline, f"left behind: {left}"
        await asyncio.sleep(0.5)


def _final_fields(job: Job) -> tuple[object, ...]:
    """The fields of a job at rest that nothing changes any more."""
    return job.state, job.attempt, job.verdict, job.released, job.counters, job.finished
