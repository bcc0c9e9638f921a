"""The running platform under kill -9 at its own side effects: whatever dies where, the job ends as it should (R4, R5).

A life is recorded: each call of a port and each change of a file, of every process but etcd
(``services.core.failpoints``). Then a process is killed at one of these points, in a life of its own for each.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.promises import Promise
from tests.testbed.failpoints import FailpointFolder, ways
from tests.testbed.real_life import Lives, lives

_SEED = os.environ.get("WEFT_SEED", "4")
_EVERY = 10**9
_TRIES = 5
"""Some points come by in most lives and not in all: a wait that ends at once, a race that others win."""


@pytest.mark.timeout(600)
@pytest.mark.promise("R4", "R5")
def test_a_process_that_is_killed_at_any_side_effect_leaves_the_job_as_it_should_be(
    tmp_path: Path, promise: Promise
) -> None:
    kill_everywhere(tmp_path, promise, {}, each=promise.n(short=2, long=_EVERY))


def kill_everywhere(folder: Path, promise: Promise, environment: Mapping[str, str], *, each: int) -> None:
    """So many kills in each process, on a platform with these settings."""
    failpoints = FailpointFolder(folder / "failpoints")
    with lives({**environment, **failpoints.environment}) as living:
        recorded = record(living, failpoints, folder, times=2)
        faults = chosen(recorded, each)
        wrong = [why for when, point in faults if (why := suffer(living, failpoints, folder, when, point))]
        assert not wrong, "\n".join(wrong)
    for process, points in by_process(recorded).items():
        tried = sum(point.startswith(f"{process}.") for _, point in faults)
        promise.saw(f"{process}: {len(points)} points in a life, killed {tried} times")
    promise.kept(len(faults), "processes of the running platform killed at a side effect")


def record(living: Lives, failpoints: FailpointFolder, folder: Path, *, times: int) -> Sequence[str]:
    """The points that are passed in each of so many undisturbed lives, but the first: it finds everything cold."""
    living.live(folder)
    seen: list[list[str]] = []
    failpoints.passed()
    for _ in range(times):
        living.live(folder)
        seen.append(failpoints.passed())
    return [point for point in seen[0] if all(point in each for each in seen[1:])]


def by_process(points: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for point in points:
        found.setdefault(point.partition(".")[0], []).append(point)
    return found


def chosen(points: Sequence[str], most: int) -> Sequence[tuple[str, str]]:
    """(when, point): all, or so many of each process, others for another seed."""
    every = {process: list(_faults(each)) for process, each in by_process(points).items()}
    return [fault for faults in every.values() for fault in sorted(faults, key=_rank)[:most]]


def _faults(points: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield from ((when, point) for point in points for when in ways(point))


def _rank(fault: tuple[str, str]) -> str:
    return hashlib.sha256(" ".join([_SEED, *fault]).encode()).hexdigest()


def suffer(living: Lives, failpoints: FailpointFolder, folder: Path, when: str, point: str) -> str:
    """What is wrong with a life in which a process was killed there: "", if all is as it should be.

    Lives go on until it was: a point that is never passed again shows nothing.
    """
    failpoints.arm(when, "kill", point)
    try:
        for _ in range(_TRIES):
            living.live(folder, hurry=lambda: failpoints.fired, may_be_lost=point.startswith("shim."))
            if failpoints.fired:
                return ""
    except AssertionError as error:
        return f"killed {when} {point}: {error}"
    finally:
        failpoints.disarm()
    return f"{point} was recorded, and never passed again in {_TRIES} lives"
