"""A guardian or life-cycle manager that dies, stands still or is cut off at any one call of its ports (R4, R5).

All or nothing, once, the end that the job's owner wants, and nothing left after 30 s. Which calls there are is
recorded, not written down: a call that is added to the code is tried out without a word here.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.promises import Promise
from tests.simulation.crash_points import WAYS, WISHES, Fault, Shape, Story, tell
from tests.simulation.crash_scenarios import GUARDIAN, LCM, SHAPES

_SEED = os.environ.get("WEFT_SEED", "4")
_EVERY = 10**9


@pytest.mark.promise("R4", "R5")
@pytest.mark.parametrize("story", [*GUARDIAN, *LCM], ids=lambda story: story.name)
def test_whatever_call_goes_wrong_the_job_ends_as_it_should(story: Story, tmp_path: Path, promise: Promise) -> None:
    tried = 0
    for shape in SHAPES:
        for procedure, first, points in sections(story, shape, tmp_path):
            faults = chosen(first, points, promise.n(short=7, long=_EVERY))
            suffer(story, shape, tmp_path, faults)
            tried += len(faults)
            promise.saw(f"{procedure}, {shape.name}: {len(points)} calls, {len(faults):,} lives with a fault")
    promise.kept(tried, f"faults of the {story.service} at a call: {story.name}")


@pytest.mark.promise("R4", "R5")
def test_whenever_its_owner_halts_or_kills_a_job_it_is_granted(tmp_path: Path, promise: Promise) -> None:
    story, tried = GUARDIAN[0], 0
    for shape in SHAPES:
        for _, first, points in sections(story, shape, tmp_path):
            faults = chosen(first, points, promise.n(short=8, long=_EVERY), WISHES)
            suffer(story, shape, tmp_path, faults)
            tried += len(faults)
    promise.kept(tried, "wishes that came at a call of the Guardian")


def sections(story: Story, shape: Shape, home: Path) -> Sequence[tuple[str, int, Sequence[str]]]:
    """(procedure, number of its first call, what its calls are about), as they are where nothing goes wrong."""
    life = tell(story, shape, home / shape.name)
    found = [(name, start, life.wire.points[start:end]) for name, (start, end) in story.sections(life).items()]
    for name, _, points in found:
        assert points, f"{name} makes no call"
    return found


def chosen(first: int, points: Sequence[str], most: int, ways: Sequence[tuple[str, str]] = WAYS) -> Sequence[Fault]:
    """Every call in every way; where that is more than ``most``, a sample in which each way has its share."""
    by_way = [[Fault(first + place, *way, point) for place, point in enumerate(points)] for way in ways]
    each = max(1, most // len(ways))
    chance = random.Random(f"{_SEED} {first} {points}")
    return [fault for some in by_way for fault in (some if len(some) <= each else chance.sample(some, each))]


def suffer(story: Story, shape: Shape, home: Path, faults: Sequence[Fault]) -> None:
    for fault in faults:
        try:
            tell(story, shape, home / f"{shape.name}-{fault.what}-{fault.when}-{fault.at}", fault)
        except AssertionError as error:
            raise AssertionError(f"{shape.name}: {fault}: {error}") from error
