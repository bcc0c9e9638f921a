"""A guardian or life-cycle manager that crashes, is paused or is cut off at any one call of its ports (R4, R5).

All learners start or none, once; the job ends as its owner wants; nothing is left after 30 s. The calls are recorded in
a run without faults, so a call that is added to the code is tested without a change here.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.promises import Promise
from tests.simulation.crash_points import FAULTS, REQUESTS, Fault, JobKind, Scenario, run_scenario
from tests.simulation.crash_scenarios import GUARDIAN, JOB_KINDS, LCM

_SEED = os.environ.get("WEFT_SEED", "4")
_ALL = 10**9


@pytest.mark.promise("R4", "R5")
@pytest.mark.parametrize("scenario", [*GUARDIAN, *LCM], ids=lambda scenario: scenario.name)
def test_a_fault_at_any_call_does_not_change_how_the_job_ends(
    scenario: Scenario, tmp_path: Path, promise: Promise
) -> None:
    tried = 0
    for job_kind in JOB_KINDS:
        for procedure, first, points in sections(scenario, job_kind, tmp_path):
            faults = choose_faults(first, points, promise.n(short=7, long=_ALL))
            run_with_faults(scenario, job_kind, tmp_path, faults)
            tried += len(faults)
            promise.saw(f"{procedure}, {job_kind.name}: {len(points)} calls, {len(faults):,} runs with a fault")
    promise.kept(tried, f"faults of the {scenario.service} at a call: {scenario.name}")


@pytest.mark.promise("R4", "R5")
def test_a_halt_or_kill_at_any_call_is_carried_out(tmp_path: Path, promise: Promise) -> None:
    scenario, tried = GUARDIAN[0], 0
    for job_kind in JOB_KINDS:
        for _, first, points in sections(scenario, job_kind, tmp_path):
            requests = choose_faults(first, points, promise.n(short=8, long=_ALL), REQUESTS)
            run_with_faults(scenario, job_kind, tmp_path, requests)
            tried += len(requests)
    promise.kept(tried, "requests of the owner at a call of the Guardian")


def sections(scenario: Scenario, job_kind: JobKind, home: Path) -> Sequence[tuple[str, int, Sequence[str]]]:
    """Runs a scenario without a fault. Returns (procedure, number of its first call, points of its calls)."""
    run = run_scenario(scenario, job_kind, home / job_kind.name)
    ranges = scenario.sections(run).items()
    procedures = [(name, start, run.tripwire.points[start:end]) for name, (start, end) in ranges]
    for name, _, points in procedures:
        assert points, f"{name} makes no call"
    return procedures


def choose_faults(
    first: int, points: Sequence[str], most: int, kinds: Sequence[tuple[str, str]] = FAULTS
) -> Sequence[Fault]:
    """Returns a fault of each kind at each call; a sample with equal shares where these are more than ``most``."""
    by_kind = [[Fault(first + index, *kind, point) for index, point in enumerate(points)] for kind in kinds]
    share = max(1, most // len(kinds))
    chance = random.Random(f"{_SEED} {first} {points}")
    return [fault for faults in by_kind for fault in (faults if len(faults) <= share else chance.sample(faults, share))]


def run_with_faults(scenario: Scenario, job_kind: JobKind, home: Path, faults: Sequence[Fault]) -> None:
    for fault in faults:
        try:
            run_scenario(scenario, job_kind, home / f"{job_kind.name}-{fault.kind}-{fault.when}-{fault.at}", fault)
        except AssertionError as error:
            raise AssertionError(f"{job_kind.name}: {fault}: {error}") from error
