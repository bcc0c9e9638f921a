"""One short seed of `make chaos` in every test run, with the same auditor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import pytest

from tests.chaos.run import run
from tests.chaos.schedule import KINDS, schedule
from tests.promises import Promise
from tests.testbed.clock_jumps import faketime_library

SEED = 11
FAULTS = 10


@pytest.mark.promise("R5")
@pytest.mark.timeout(1200)
def test_faults_lose_nothing_duplicate_nothing_and_leave_nothing_behind(
    promise: Promise, announce: Callable[[str], None], untimed: Callable[[], AbstractContextManager[None]]
) -> None:
    with untimed(), suppress(RuntimeError):  # without the library the run reports that no clock jumps
        faketime_library(announce)
    messages: list[str] = []
    outcome = run(SEED, FAULTS, say=messages.append, progress=lambda _: None)
    assert outcome.verdict.failures == [], "\n".join([*messages, *outcome.lines])
    counts = outcome.verdict.counts
    promise.kept(counts["jobs"], f"jobs under {sum(outcome.faults.values())} faults of {len(outcome.faults)} kinds")
    for line in outcome.lines:
        promise.saw(line)


def test_schedule_is_a_function_of_its_seed() -> None:
    has = {"root", "clocks"}
    assert schedule(7, 200, has) == schedule(7, 200, has)
    assert schedule(7, 200, has) != schedule(8, 200, has)
    assert schedule(7, 50, has) == schedule(7, 200, has)[:50]


def test_two_hundred_faults_cover_every_kind_and_victim() -> None:
    has = {kind.needs for kind in KINDS}
    assert {(fault.kind, fault.victim) for fault in schedule(7, 200, has)} == {
        (kind.name, victim) for kind in KINDS for victim in kind.victims
    }


def test_schedule_omits_kinds_whose_requirements_are_missing() -> None:
    assert not {fault.kind for fault in schedule(7, 200)} & {kind.name for kind in KINDS if kind.needs}
