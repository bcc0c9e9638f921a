"""The work for a gang grows with its learners, not with their square."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from services.core.adapters.kubernetes import pods
from services.core.adapters.kubernetes.options import GangMethod, KubernetesOptions
from services.core.domain.job import Attempt, Job, Rerun, State
from services.core.domain.learner import Exit, LearnerStatus, learner_name
from services.core.domain.restart import as_running, late_rerun, next_restart
from services.core.domain.sizes import SIZES
from services.core.domain.spec import JobSpec, parse_spec
from services.core.domain.status import Phase, Status
from services.core.domain.status_keys import attempt_key, learner_key
from services.core.domain.tokens import LearnerIdentity
from services.core.domain.verdict import decide_verdict
from services.core.ports.cluster import LearnerProcess, Node, Observation
from services.guardian import observed_state
from services.guardian.render import render
from services.metrics.attempts import Attempts
from tests.documents import NOW, a_job
from tests.testbed.control_plane import ControlPlane
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.testbed.tripwire import Tripwire

OPTIONS = KubernetesOptions(helper_image="h", learner_image="l", entry_script="", addresses={})
SMALL, LARGE = 100, 400
MOST: float = 2 * LARGE / SMALL
"""Times the work of the small gang; its square would be 16."""


def operations(call: Callable[[], object]) -> int:
    """Counts the instructions that Python executes in a call: the same on every machine."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def assert_linear(work: Callable[[int], Callable[[], object]]) -> None:
    """``work`` prepares the call for a gang of so many learners."""
    calls = {count: work(count) for count in (SMALL, LARGE)}
    calls[SMALL]()  # what is computed once is not counted
    counted = {count: operations(call) for count, call in calls.items()}
    assert counted[LARGE] < MOST * counted[SMALL], counted


def a_spec(count: int) -> JobSpec:
    role = {"count": count, "on_failure": "restart", "min": count // 2}
    return parse_spec({"name": "n", "command": "true", "roles": {"worker": role}, "retries": {"max": 5}})


def a_running_job(count: int, *, rerun: bool = False) -> Job:
    again = Rerun(run=2, time=NOW, not_before=NOW, reason="LearnerLost", message="it is lost")
    reruns = {learner_name("worker", index): again for index in range(count)} if rerun else {}
    attempt = Attempt(number=1, admitted=NOW, started=NOW, committed=True, reruns=reruns)
    return replace(a_job(at=NOW), attempt=attempt, state=State(status=Status.PROCESSING, since=NOW))


def lost_learners(count: int) -> dict[str, LearnerStatus]:
    return {
        learner_name("worker", index): LearnerStatus(
            name=learner_name("worker", index),
            role="worker",
            rank=index,
            attempt=1,
            seq=1,
            phase=Phase.PROCESSING,
            exit=Exit(time=NOW, lost=True),
        )
        for index in range(count)
    }


def test_verdict_of_a_gang_whose_machines_are_all_lost() -> None:
    def work(count: int) -> Callable[[], object]:
        job, spec, learners = a_running_job(count), a_spec(count), lost_learners(count)
        return lambda: decide_verdict(job, spec, learners, now=NOW)

    assert_linear(work)


def test_next_restart_of_a_gang_whose_machines_are_all_lost() -> None:
    def work(count: int) -> Callable[[], object]:
        job, spec, learners = a_running_job(count), a_spec(count), lost_learners(count)
        return lambda: next_restart(job, spec, learners, now=NOW)

    assert_linear(work)


def test_wait_for_a_gang_whose_learners_are_all_started_again() -> None:
    def work(count: int) -> Callable[[], object]:
        job, spec = a_running_job(count, rerun=True), a_spec(count)
        return lambda: late_rerun(job, spec, {}, now=NOW, timeout_ms=1_000)

    assert_linear(work)


def test_observed_state_of_a_gang() -> None:
    def work(count: int) -> Callable[[], object]:
        job, spec, reported = a_running_job(count), a_spec(count), lost_learners(count)
        running = [LearnerProcess(name=name, attempt=1, state="running", run=1, started=NOW) for name in reported]
        observed = Observation(learners=running, attempts=[1])

        def observe() -> None:
            ranks = observed_state.ranks(spec, job.attempt)
            latest = observed_state.latest_reports(job.attempt, reported)
            merged = observed_state.merge(ranks, 1, latest, observed_state.latest_runs(job.attempt, observed))
            learners = observed_state.with_lost(ranks, 1, merged, observed, now=NOW)
            activated = observed_state.all_activated(ranks, 1, learners, observed)
            running = as_running(job, spec, learners)
            observed_state.with_observed(job, running, expected=count, activated=activated, now=NOW)

        return observe

    assert_linear(work)


@pytest.mark.slow
def test_pods_of_a_gang() -> None:
    def work(count: int) -> Callable[[], object]:
        spec = parse_spec({"name": "n", "command": "true", "learners": count, "distribution": "torchrun"})
        plan = render(a_running_job(count), spec, term=1, mint=lambda _: "token", sizes=SIZES)
        return lambda: [pods.pod(plan, learner, OPTIONS, "", gang=GangMethod.GATES) for learner in plan.learners]

    assert_linear(work)


async def _announced(count: int, notified: list[str]) -> Attempts:
    """The metrics service's view of a gang that was just announced."""
    status = MemoryStatusStore()
    await status.put(attempt_key("j0"), json.dumps({"attempt": 1, "learners": count}))
    attempts = Attempts(status, notified.append)
    entry = await status.get(attempt_key("j0"))
    assert entry is not None
    attempts._put(entry)
    return attempts


def test_heartbeats_of_a_gang_that_waits_for_its_last_learner() -> None:
    def work(count: int) -> Callable[[], object]:
        attempts = asyncio.run(_announced(count, []))
        for revision, learner in enumerate(list(lost_learners(count).values())[1:], 2):
            attempts.record("j0", learner, revision, age=0)
        beats = [LearnerIdentity("j0", "t", 1, "worker", rank, learner_name("worker", rank)) for rank in range(count)]

        async def round_of_beats() -> None:
            for learner in beats:
                assert await attempts.may_go(learner) == (True, False)

        return lambda: asyncio.run(round_of_beats())

    assert_linear(work)


async def test_reports_of_a_gang_wake_its_learners_when_the_last_one_is_ready() -> None:
    notified: list[str] = []
    attempts = await _announced(LARGE, notified)
    notified.clear()
    for revision, learner in enumerate(lost_learners(LARGE).values(), 2):
        assert notified == []
        attempts.record("j0", replace(learner, phase=Phase.READY, exit=None), revision, age=0)
    assert notified == ["j0"]


@pytest.mark.looptime(noop_cycles=0)
async def test_reports_of_a_large_gang_share_reconciles(tmp_path: Path) -> None:
    node = Node(name="local", cpus=10_000, memory=10**15, gpus=0)
    plane, wire, count = ControlPlane(tmp_path, nodes=[node]), Tripwire(), 200
    try:
        await plane.start_lcm()
        await plane.start_pool(wire)
        job_id = await plane.submit(learners=count)
        plane.helpers.fate(job_id, run_s=None)
        await plane.running(job_id)
        await asyncio.sleep(5)
        before = wire.calls.count("jobs.get")
        for index in range(count):
            key = learner_key(job_id, learner_name("worker", index))
            entry = await plane.status.get(key)
            assert entry is not None
            report = json.loads(entry.value)
            await plane.status.put(key, json.dumps(report | {"seq": report["seq"] + 1}))
            await asyncio.sleep(0.001)
        await asyncio.sleep(1)
        assert wire.calls.count("jobs.get") - before < count / 4
    finally:
        await plane.close()
