"""The running platform under kill -9 at its own side effects: whatever dies where, the job ends as it should (R4, R5).

A life is recorded: each call of a port and each change of a file, of every process but etcd
(``services.core.failpoints.points``). Then a process is killed at one of these points, in a life of its own for each.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from services.core.runtime.home import Home
from services.local.commands import PLATFORM
from tests.promises import Promise
from tests.testbed.failpoints import FailpointFolder, ways
from tests.testbed.real_life import Lives, lives
from tests.waiting import eventually

_SEED = os.environ.get("WEFT_SEED", "4")
_EVERY = 10**9
_TRIES = 20
"""Some points come by in most lives and not in all: a wait that ends at once, a race that others win."""


@dataclass(frozen=True)
class Bed:
    """A platform whose processes may be killed at their own side effects, and how to tell them where."""

    living: Lives
    failpoints: FailpointFolder


@contextmanager
def bed(folder: Path, environment: Mapping[str, str]) -> Generator[Bed]:
    failpoints = FailpointFolder(folder / "failpoints")
    with lives({**environment, **failpoints.environment}) as living:
        yield Bed(living, failpoints)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with bed(tmp_path_factory.mktemp("embedded"), {}) as one:
        yield one


def test_whoever_asks_is_told_that_services_may_die_on_purpose(embedded: Bed) -> None:
    home = embedded.living.weft.home
    ready = {("ready", "failpoints are on: it may die on purpose")}
    services = _services(home)
    # The worker need not be ready for the platform to be up.
    eventually(lambda: {(one["state"], one["why"]) for one in _services(home)} == ready)
    (check,) = [one for one in PLATFORM.doctor(str(home.root)) if one["check"] == "failpoints"]
    assert (check["ok"], check["detail"]) == (False, f"on in {len(services)} services: they may die on purpose")
    logs = {path.stem: path.read_text() for path in (home / "logs").glob("*.log")}
    said = {name for name, log in logs.items() if "failpoints.turned_on" in log}
    assert said >= {"api", "guardian", "lcm", "metrics", "node", "worker"}


@pytest.mark.promise("R4", "R5")
def test_a_process_that_is_killed_at_any_side_effect_leaves_the_job_as_it_should_be(
    embedded: Bed, request: pytest.FixtureRequest, tmp_path: Path, promise: Promise
) -> None:
    most = promise.n(short=10, long=_EVERY)
    kill_everywhere(embedded, tmp_path, promise, most, "SQLite")
    if os.environ.get("WEFT_PROMISE"):
        mongo = request.getfixturevalue("own_mongo")
        with bed(tmp_path, {"WEFT_JOB_STORE": f"{mongo.uri}weft"}) as one:
            kill_everywhere(one, tmp_path, promise, most, "MongoDB")


def _services(home: Home) -> list[dict[str, Any]]:
    """As ``weft status`` shows them, but for etcd."""
    return [one for one in PLATFORM.status(str(home.root))["services"] if one["name"] != "etcd"]


def kill_everywhere(one: Bed, folder: Path, promise: Promise, most: int, store: str) -> None:
    """So many kills, each in a life of its own."""
    recorded = record(one, folder)
    faults = chosen(recorded, most)
    wrong = [why for when, point in faults if (why := suffer(one, folder, when, point))]
    assert not wrong, "\n".join(wrong)
    for process, points in by_process(recorded).items():
        tried = sum(point.startswith(f"{process}.") for _, point in faults)
        promise.saw(f"{store}, {process}: {len(points)} points in a life, killed {tried} times")
    promise.kept(len(faults), f"processes of the running platform on {store} killed at a side effect")
    promise.saw(f"{store}: nothing of a job is left {one.living.gone_s:.1f} s after its end at most (promised: 30 s)")


def record(one: Bed, folder: Path) -> Sequence[str]:
    """The points that are passed in each of two undisturbed lives, after a first one that finds everything cold."""
    one.living.live(folder)
    one.failpoints.passed()
    one.living.live(folder)
    first = one.failpoints.passed()
    one.living.live(folder)
    second = one.failpoints.passed()
    return [point for point in first if point in second]


def by_process(points: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for point in points:
        found.setdefault(point.partition(".")[0], []).append(point)
    return found


def chosen(points: Sequence[str], most: int) -> Sequence[tuple[str, str]]:
    """(when, point): all, or so many, of each process in turn; others for another seed."""
    by_rank = [sorted(_faults(each), key=_rank) for each in by_process(points).values()]
    in_turn = [fault for turn in zip_longest(*by_rank) for fault in turn if fault is not None]
    return in_turn[:most]


def _faults(points: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield from ((when, point) for point in points for when in ways(point))


def _rank(fault: tuple[str, str]) -> str:
    return hashlib.sha256(" ".join([_SEED, *fault]).encode()).hexdigest()


def suffer(one: Bed, folder: Path, when: str, point: str) -> str:
    """What is wrong with a life in which a process was killed there: "", if all is as it should be.

    Lives go on until it was: a point that is never passed again shows nothing.
    """
    one.failpoints.arm(when, "kill", point)
    try:
        for _ in range(_TRIES):
            one.living.live(folder, hurry=lambda: one.failpoints.fired, may_be_lost=point.startswith("shim."))
            if one.failpoints.fired:
                return ""
    except AssertionError as error:
        return f"killed {when} {point}: {error}"
    finally:
        one.failpoints.disarm()
    return f"{point} was recorded, and never passed again in {_TRIES} lives"
