"""The running platform under kill -9 at its own side effects: the job completes wherever a process dies (R4, R5).

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
"""Lives in which a point is waited for: some points are passed in most lives only, e.g. after a lost race."""


@dataclass(frozen=True)
class Bed:
    """A platform whose processes may be killed at their own side effects, and the folder that says where."""

    living: Lives
    failpoints: FailpointFolder


@contextmanager
def start_bed(folder: Path, environment: Mapping[str, str]) -> Generator[Bed]:
    failpoints = FailpointFolder(folder / "failpoints")
    with lives({**environment, **failpoints.environment}) as living:
        yield Bed(living, failpoints)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with start_bed(tmp_path_factory.mktemp("embedded"), {}) as platform:
        yield platform


def test_status_and_doctor_say_that_failpoints_are_on(embedded: Bed) -> None:
    home = embedded.living.weft.home
    ready = {("ready", "failpoints are on: it may die on purpose")}
    services = _services(home)
    # The worker need not be ready for the platform to be up.
    eventually(lambda: {(service["state"], service["why"]) for service in _services(home)} == ready)
    (check,) = [check for check in PLATFORM.doctor(str(home.root)) if check["check"] == "failpoints"]
    assert (check["ok"], check["detail"]) == (False, f"on in {len(services)} services: they may die on purpose")
    logs = {path.stem: path.read_text() for path in (home / "logs").glob("*.log")}
    with_failpoints = {name for name, log in logs.items() if "failpoints.turned_on" in log}
    assert with_failpoints >= {"api", "guardian", "lcm", "metrics", "node", "worker"}


@pytest.mark.promise("R4", "R5")
def test_a_job_completes_though_a_process_is_killed_at_any_side_effect(
    embedded: Bed, request: pytest.FixtureRequest, tmp_path: Path, promise: Promise
) -> None:
    most = promise.n(short=10, long=_EVERY)
    kill_everywhere(embedded, tmp_path, promise, most, "SQLite")
    if os.environ.get("WEFT_PROMISE"):
        mongo = request.getfixturevalue("own_mongo")
        with start_bed(tmp_path, {"WEFT_JOB_STORE": f"{mongo.uri}weft"}) as on_mongo:
            kill_everywhere(on_mongo, tmp_path, promise, most, "MongoDB")


def _services(home: Home) -> list[dict[str, Any]]:
    """The services that ``weft status`` shows, without etcd."""
    return [service for service in PLATFORM.status(str(home.root))["services"] if service["name"] != "etcd"]


def kill_everywhere(bed: Bed, folder: Path, promise: Promise, most: int, store: str) -> None:
    """Kills a process at ``most`` points at most, each in a life of its own."""
    recorded = record(bed, folder)
    faults = chosen(recorded, most)
    wrong = [why for when, point in faults if (why := suffer(bed, folder, when, point))]
    assert not wrong, "\n".join(wrong)
    for process, points in by_process(recorded).items():
        tried = sum(point.startswith(f"{process}.") for _, point in faults)
        promise.saw(f"{store}, {process}: {len(points)} points in a life, killed {tried} times")
    promise.kept(len(faults), f"processes of the running platform on {store} killed at a side effect")
    promise.saw(f"{store}: nothing of a job is left {bed.living.gone_s:.1f} s after its end at most (promised: 30 s)")


def record(bed: Bed, folder: Path) -> Sequence[str]:
    """The points passed in both of two undisturbed lives, after a first one that fills the caches."""
    bed.living.live(folder)
    bed.failpoints.passed()
    bed.living.live(folder)
    first = bed.failpoints.passed()
    bed.living.live(folder)
    second = bed.failpoints.passed()
    return [point for point in first if point in second]


def by_process(points: Sequence[str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for point in points:
        grouped.setdefault(point.partition(".")[0], []).append(point)
    return grouped


def chosen(points: Sequence[str], most: int) -> Sequence[tuple[str, str]]:
    """(when, point): at most ``most``, of each process in turn. Another seed chooses others."""
    by_rank = [sorted(_faults(of_process), key=_rank) for of_process in by_process(points).values()]
    in_turn = [fault for turn in zip_longest(*by_rank) for fault in turn if fault is not None]
    return in_turn[:most]


def _faults(points: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield from ((when, point) for point in points for when in ways(point))


def _rank(fault: tuple[str, str]) -> str:
    return hashlib.sha256(" ".join([_SEED, *fault]).encode()).hexdigest()


def suffer(bed: Bed, folder: Path, when: str, point: str) -> str:
    """Runs lives until a process was killed at this point. Returns what was wrong with the last life; "" if nothing.

    A point that is not passed again shows nothing: then an error says so.
    """
    bed.failpoints.arm(when, "kill", point)
    try:
        for _ in range(_TRIES):
            bed.living.live(folder, hurry=lambda: bed.failpoints.fired, may_be_lost=point.startswith("shim."))
            if bed.failpoints.fired:
                return ""
    except AssertionError as error:
        return f"killed {when} {point}: {error}"
    finally:
        bed.failpoints.disarm()
    return f"{point} was recorded, and never passed again in {_TRIES} lives"
