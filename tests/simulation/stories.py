"""The stories whose every call is tried out (see ``lives``), and the shapes of jobs that they are told of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from services.core.domain.errors import NoSpace
from services.core.domain.plan import AttemptPlan, LearnerPlan
from services.core.domain.status import Desired
from tests.simulation.lives import Life, Sections, Shape, Story
from tests.testbed.control_plane import WHOLE_LIFE
from tests.testbed.tripwire import Tripwire

_DATA: dict[str, object] = {
    "data_stores": [
        {"id": "here", "type": "local", "path": "/srv/data"},
        {"id": "there", "type": "http", "url": "https://data.example.org/digits"},
    ],
    "inputs": [{"store": "here", "path": "digits"}, {"store": "there", "path": "test.csv", "mount": "test"}],
}
SHAPES = (
    Shape("1 learner", ("worker-0",), {}),
    Shape("4 learners", ("worker-0", "worker-1", "worker-2", "worker-3"), {"learners": 4}),
    Shape("two roles", ("ps-0", "worker-0", "worker-1"), {"roles": {"ps": {"count": 1}, "worker": {"count": 2}}}),
    Shape("data stores", ("worker-0", "worker-1"), {"learners": 2, **_DATA}, download_s=2.0),
)
_RUNNING = WHOLE_LIFE[:4]
_SOON = {"backoff": "100ms"}
_GHOST = "jghost"
"""A job whose document is gone."""


def _since(mark: str, procedure: str) -> Callable[[Life], Sections]:
    """From the mark to the end."""
    return lambda life: {procedure: (life.marks[mark], life.marks["rest"])}


def _all(procedure: str) -> Callable[[Life], Sections]:
    return lambda life: {procedure: (0, life.marks["rest"])}


def _after_verdict(procedure: str) -> Callable[[Life], Sections]:
    """From the first attempt's verdict to the end of the second."""
    return lambda life: {procedure: (life.call("jobs.replace", "verdict"), life.marks["rest"])}


# --- a guardian service -----------------------------------------------------------------


async def _pool(life: Life) -> None:
    """The one under test, and the life-cycle manager that it needs."""
    await life.plane.start_lcm()
    life.tested.set_result(await life.plane.start_pool(life.wire, place="tested"))


async def _completes(life: Life) -> None:
    await _pool(life)
    await life.submit()


def _stages(life: Life) -> Sections:
    active, verdict = life.call("cluster.do(activate)"), life.call("jobs.replace", "verdict")
    return {"provisioning": (0, active), "activation": (active, verdict), "end": (verdict, life.marks["rest"])}


def _wished(wish: Desired) -> Callable[[Life], Awaitable[None]]:
    async def lead(life: Life) -> None:
        await _pool(life)
        await life.submit()
        await life.run_for_ever()
        life.mark("wish")
        await life.plane.set_desired(life.job_id, wish)

    return lead


def _taken_over(*, when: str, at: tuple[str, int]) -> Callable[[Life], Awaitable[None]]:
    """The one under test takes a job over from one that died at a call of its own."""

    async def lead(life: Life) -> None:
        await life.plane.start_lcm()
        dies = Tripwire(at=at, when=when)
        old = await life.plane.start_pool(dies, place="old")
        await life.submit()
        await dies.tripped.wait()
        life.tested.set_result(await life.plane.start_pool(life.wire, place="tested"))
        await life.plane.kill(old)

    return lead


async def _taken_over_running(life: Life) -> None:
    await life.plane.start_lcm()
    old = await life.plane.start_pool(place="old")
    await life.submit()
    life.plane.helpers.fate(life.job_id, download_s=life.shape.download_s, run_s=8)
    await life.plane.running(life.job_id)
    life.tested.set_result(await life.plane.start_pool(life.wire, place="tested"))
    await life.plane.kill(old)


async def _fails_once(life: Life) -> None:
    await _pool(life)
    await life.submit(retries={"max": 1, **_SOON})
    for name in life.shape.learners[:-1]:
        life.plane.helpers.fate(life.job_id, name=name, attempt=1, run_s=None)
    life.plane.helpers.fate(life.job_id, name=life.shape.learners[-1], attempt=1, code=3, run_s=0.2)


async def _refused_once(life: Life) -> None:
    await _pool(life)
    life.plane.cluster.refuse("learners", NoSpace("the disk is full"), attempt=1)
    await life.submit(retries=_SOON)


GUARDIAN = (
    Story("completes", _completes, _stages, WHOLE_LIFE),
    Story("halted", _wished(Desired.HALT), _since("wish", "halt"), [*_RUNNING, "HALTING", "HALTED"]),
    Story("killed", _wished(Desired.KILL), _since("wish", "kill"), [*_RUNNING, "KILLED"], stored=0),
    Story(
        "half provisioned", _taken_over(at=("cluster.do", 2), when="after"),
        _all("take-over, half provisioned"), WHOLE_LIFE,
    ),
    Story("running", _taken_over_running, _all("take-over, running"), WHOLE_LIFE),
    Story(
        "ending", _taken_over(at=("cluster.teardown", 1), when="before"), _all("take-over, ending"), WHOLE_LIFE
    ),
    Story(
        "fails once", _fails_once, _after_verdict("retry"), [*_RUNNING, "STORING", *WHOLE_LIFE], attempts=2, retries=1,
        stored=2,
    ),
    Story(
        "refused once", _refused_once, _after_verdict("roll-back"), ["QUEUED", "PENDING", *WHOLE_LIFE], attempts=2,
        restarts=1,
    ),
)  # fmt: skip


# --- a life-cycle manager ----------------------------------------------------------------


async def _lcm(life: Life) -> None:
    """The one under test, and the guardian service that carries out what it decides."""
    life.tested.set_result(await life.plane.start_lcm(life.wire, place="tested"))
    await life.plane.start_pool()


async def _dispatches(life: Life) -> None:
    await _lcm(life)
    await life.submit()


async def _compete(life: Life) -> None:
    """Two jobs, each of which needs all there is."""
    await _lcm(life)
    for _ in range(2):
        await life.submit(resources={"cpus": 16 // len(life.shape.learners), "memory": "1GB"})


def _admission(life: Life) -> Sections:
    admitted = life.call("hints.send(admitted)") + 1
    return {"admission": (0, admitted), "rounds and histories": (admitted, life.marks["rest"])}


async def _dispatcher_taken_over(life: Life) -> None:
    """The old one died just after it had admitted the job: the new one stamps the admission, or takes it back."""
    dies = Tripwire(at=("hints.send", 1), when="before")
    old = await life.plane.start_lcm(dies, place="old")
    await life.submit()
    await dies.tripped.wait()
    await life.plane.kill(old)
    life.tested.set_result(await life.plane.start_lcm(life.wire, place="tested"))
    await life.plane.until(lambda job: job.dispatcher_term >= 2, life.job_id)
    await life.plane.start_pool()


async def _collects(life: Life) -> None:
    """Late effects of a job that is over, and learners of one whose document is gone."""
    await _dispatches(life)
    await life.plane.rested(life.job_id)
    life.mark("leftovers")
    await life.plane.status.put(f"/jobs/{life.job_id}/plan/00", "{}")
    await life.plane.status.put(f"/jobs/{_GHOST}/attempt", "{}")
    for step in life.plane.cluster.steps():
        await life.plane.cluster.do(step, _ghost())
    while await life.plane.leftovers():  # noqa: ASYNC110 - virtual time; how long it may take is judged in ``lives``
        await asyncio.sleep(0.5)


def _ghost() -> AttemptPlan:
    one = LearnerPlan(
        name="worker-0", role="worker", rank=0, command="true", cpus=1, memory=1, gpus=0, node="local", token="t"
    )
    return AttemptPlan(
        job=_GHOST, tenant="t", attempt=4, term=9, learners=(one,), distribution="none", framework="", code_digest="",
        inputs=(), grace=0, store_timeout=0, checkpoint_keep=1,
    )  # fmt: skip


LCM = (
    Story("dispatches", _dispatches, _admission, WHOLE_LIFE, service="lcm"),
    Story("competing", _compete, _all("two jobs for one place"), WHOLE_LIFE, service="lcm"),
    Story("new dispatcher", _dispatcher_taken_over, _all("take-over, admitted"), WHOLE_LIFE, service="lcm"),
    Story("collects", _collects, _since("leftovers", "collection"), WHOLE_LIFE, service="lcm"),
)
