"""One small seed of `make chaos` in every run: the same faults each time, the same judge."""

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
def test_a_seed_of_faults_loses_nothing_doubles_nothing_and_leaves_nothing(
    promise: Promise, aloud: Callable[[str], None], untimed: Callable[[], AbstractContextManager[None]]
) -> None:
    with untimed(), suppress(RuntimeError):  # without it there are no clock jumps, which the run says itself
        faketime_library(aloud)
    said: list[str] = []
    outcome = run(SEED, FAULTS, say=said.append, progress=lambda _: None)
    assert outcome.verdict.wrong == [], "\n".join([*said, *outcome.lines])
    counts = outcome.verdict.counts
    promise.kept(counts["jobs"], f"jobs under {sum(outcome.faults.values())} faults of {len(outcome.faults)} kinds")
    for line in outcome.lines:
        promise.saw(line)


def test_a_schedule_is_a_function_of_its_seed() -> None:
    has = {"root", "clocks"}
    assert schedule(7, 200, has) == schedule(7, 200, has)
    assert schedule(7, 200, has) != schedule(8, 200, has)
    assert schedule(7, 50, has) == schedule(7, 200, has)[:50]


def test_two_hundred_faults_are_of_every_kind() -> None:
    has = {kind.needs for kind in KINDS}
    assert {(fault.kind, fault.victim) for fault in schedule(7, 200, has)} == {
        (kind.name, victim) for kind in KINDS for victim in kind.victims
    }


def test_what_a_machine_cannot_do_is_in_no_schedule() -> None:
    assert not {fault.kind for fault in schedule(7, 200)} & {kind.name for kind in KINDS if kind.needs}
