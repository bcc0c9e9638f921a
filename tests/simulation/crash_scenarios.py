"""The scenarios of the crash points (``tests.simulation.crash_points``), and the kinds of jobs that they run with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from services.core.domain.errors import NoSpace
from services.core.domain.plan import AttemptPlan
from services.core.domain.status import Desired
from services.core.domain.status_keys import attempt_key, plan_key
from tests.documents import a_learner, a_plan
from tests.simulation.crash_points import JobKind, Scenario, ScenarioRun, Sections
from tests.testbed.control_plane import WHOLE_LIFE
from tests.testbed.tripwire import Tripwire

_DATA: dict[str, object] = {
    "data_stores": [
        {"id": "here", "type": "local", "path": "/srv/data"},
        {"id": "there", "type": "http", "url": "https://data.example.org/digits"},
    ],
    "inputs": [{"store": "here", "path": "digits"}, {"store": "there", "path": "test.csv", "mount": "test"}],
}
JOB_KINDS = (
    JobKind("1 learner", ("worker-0",), {}),
    JobKind("4 learners", ("worker-0", "worker-1", "worker-2", "worker-3"), {"learners": 4}),
    JobKind("two roles", ("ps-0", "worker-0", "worker-1"), {"roles": {"ps": {"count": 1}, "worker": {"count": 2}}}),
    JobKind("data stores", ("worker-0", "worker-1"), {"learners": 2, **_DATA}, download_s=2.0),
)
_RUNNING = WHOLE_LIFE[:4]
_SOON = {"backoff": "100ms"}
_GHOST = "jghost"
"""Id of a job without a document."""


def _since(mark: str, procedure: str) -> Callable[[ScenarioRun], Sections]:
    """All calls from the mark to the end are of one procedure."""
    return lambda run: {procedure: (run.marks[mark], run.marks["rest"])}


def _all(procedure: str) -> Callable[[ScenarioRun], Sections]:
    return lambda run: {procedure: (0, run.marks["rest"])}


def _after_verdict(procedure: str) -> Callable[[ScenarioRun], Sections]:
    """From the first attempt's verdict to the end of the second."""
    return lambda run: {procedure: (run.call("jobs.replace", "verdict"), run.marks["rest"])}


# --- a guardian service -----------------------------------------------------------------


async def _pool(run: ScenarioRun) -> None:
    """Starts a life-cycle manager and the guardian service under test."""
    await run.plane.start_lcm()
    run.tested.set_result(await run.plane.start_pool(run.tripwire, place="tested"))


async def _completes(run: ScenarioRun) -> None:
    await _pool(run)
    await run.submit()


def _stages(run: ScenarioRun) -> Sections:
    active, verdict = run.call("cluster.do(activate)"), run.call("jobs.replace", "verdict")
    return {"provisioning": (0, active), "activation": (active, verdict), "end": (verdict, run.marks["rest"])}


def _changed(desired: Desired) -> Callable[[ScenarioRun], Awaitable[None]]:
    async def lead(run: ScenarioRun) -> None:
        await _pool(run)
        await run.submit()
        await run.run_without_end()
        run.mark("desired")
        await run.plane.set_desired(run.job_id, desired)

    return lead


def _taken_over(*, when: str, at: tuple[str, int]) -> Callable[[ScenarioRun], Awaitable[None]]:
    """The service under test takes over a job from one that crashed at its call ``at``."""

    async def lead(run: ScenarioRun) -> None:
        await run.plane.start_lcm()
        crash = Tripwire(at=at, when=when)
        old = await run.plane.start_pool(crash, place="old")
        await run.submit()
        await crash.tripped.wait()
        run.tested.set_result(await run.plane.start_pool(run.tripwire, place="tested"))
        await run.plane.kill(old)

    return lead


async def _taken_over_running(run: ScenarioRun) -> None:
    await run.plane.start_lcm()
    old = await run.plane.start_pool(place="old")
    await run.submit()
    run.plane.helpers.fate(run.job_id, download_s=run.job_kind.download_s, run_s=8)
    await run.plane.running(run.job_id)
    run.tested.set_result(await run.plane.start_pool(run.tripwire, place="tested"))
    await run.plane.kill(old)


async def _fails_once(run: ScenarioRun) -> None:
    await _pool(run)
    await run.submit(retries={"max": 1, **_SOON})
    for name in run.job_kind.learners[:-1]:
        run.plane.helpers.fate(run.job_id, name=name, attempt=1, run_s=None)
    run.plane.helpers.fate(run.job_id, name=run.job_kind.learners[-1], attempt=1, code=3, run_s=0.2)


async def _refused_once(run: ScenarioRun) -> None:
    await _pool(run)
    run.plane.cluster.refuse("learners", NoSpace("the disk is full"), attempt=1)
    await run.submit(retries=_SOON)


GUARDIAN = (
    Scenario("completes", _completes, _stages, WHOLE_LIFE),
    Scenario("halted", _changed(Desired.HALT), _since("desired", "halt"), [*_RUNNING, "HALTING", "HALTED"]),
    Scenario("killed", _changed(Desired.KILL), _since("desired", "kill"), [*_RUNNING, "KILLED"], stored=0),
    Scenario(
        "half provisioned",
        _taken_over(at=("cluster.do", 2), when="after"),
        _all("take-over, half provisioned"),
        WHOLE_LIFE,
    ),
    Scenario("running", _taken_over_running, _all("take-over, running"), WHOLE_LIFE),
    Scenario("ending", _taken_over(at=("cluster.teardown", 1), when="before"), _all("take-over, ending"), WHOLE_LIFE),
    Scenario(
        "fails once",
        _fails_once,
        _after_verdict("retry"),
        [*_RUNNING, "STORING", *WHOLE_LIFE],
        attempts=2,
        retries=1,
        stored=2,
    ),
    Scenario(
        "refused once",
        _refused_once,
        _after_verdict("roll-back"),
        ["QUEUED", "PENDING", *WHOLE_LIFE],
        attempts=2,
        restarts=1,
    ),
)


# --- a life-cycle manager ----------------------------------------------------------------


async def _lcm(run: ScenarioRun) -> None:
    """Starts the life-cycle manager under test and a guardian service."""
    run.tested.set_result(await run.plane.start_lcm(run.tripwire, place="tested"))
    await run.plane.start_pool()


async def _dispatches(run: ScenarioRun) -> None:
    await _lcm(run)
    await run.submit()


async def _compete(run: ScenarioRun) -> None:
    """Two jobs, each of which needs all resources."""
    await _lcm(run)
    for _ in range(2):
        await run.submit(resources={"cpus": 16 // len(run.job_kind.learners), "memory": "1GB"})


def _admission(run: ScenarioRun) -> Sections:
    admitted = run.call("hints.send(admitted)") + 1
    return {"admission": (0, admitted), "rounds and histories": (admitted, run.marks["rest"])}


async def _dispatcher_taken_over(run: ScenarioRun) -> None:
    """The old dispatcher crashed after it admitted the job; the new one confirms the admission or withdraws it."""
    crash = Tripwire(at=("hints.send", 1), when="before")
    old = await run.plane.start_lcm(crash, place="old")
    await run.submit()
    await crash.tripped.wait()
    await run.plane.kill(old)
    run.tested.set_result(await run.plane.start_lcm(run.tripwire, place="tested"))
    await run.plane.until(lambda job: job.dispatcher_term >= 2, run.job_id)
    await run.plane.start_pool()


async def _collects(run: ScenarioRun) -> None:
    """The collector removes late effects of an ended job, and learners of a job without a document."""
    await _dispatches(run)
    await run.plane.rested(run.job_id)
    run.mark("leftovers")
    await run.plane.status.put(plan_key(run.job_id, 0), "{}")
    await run.plane.status.put(attempt_key(_GHOST), "{}")
    for step in run.plane.cluster.steps():
        await run.plane.cluster.do(step, _ghost_plan())
    while await run.plane.leftovers():  # noqa: ASYNC110 - virtual time; crash_points limits it
        await asyncio.sleep(0.5)


def _ghost_plan() -> AttemptPlan:
    return a_plan(a_learner(), job=_GHOST, attempt=4, term=9)


LCM = (
    Scenario("dispatches", _dispatches, _admission, WHOLE_LIFE, service="lcm"),
    Scenario("competing", _compete, _all("two jobs for one place"), WHOLE_LIFE, service="lcm"),
    Scenario("new dispatcher", _dispatcher_taken_over, _all("take-over, admitted"), WHOLE_LIFE, service="lcm"),
    Scenario("collects", _collects, _since("leftovers", "collection"), WHOLE_LIFE, service="lcm"),
)
